"""Cubes for other frameworks: each module speaks one framework's own protocol and imports nothing of it."""
