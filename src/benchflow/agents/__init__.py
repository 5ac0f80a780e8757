"""Agents: who acts on a task, named `NAME` or `NAME:ARGUMENT`."""
