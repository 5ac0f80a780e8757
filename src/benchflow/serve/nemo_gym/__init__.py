"""Served tasks as a resources server of NeMo Gym; the routes are in `cube.integrations.nemogym`."""
