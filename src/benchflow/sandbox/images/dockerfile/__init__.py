"""Dockerfile text as instructions, words and stages. Pure."""
