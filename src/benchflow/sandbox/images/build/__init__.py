"""Dockerfile instructions as layers: what each step asks for, and how its files get into a layer."""
