"""Judges: a model's answers about declared files, by a rubric or a role."""
