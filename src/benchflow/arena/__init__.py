"""Arenas: agents as live peers over A2A, and an assessor that scores while they talk. Needs the extra `arena`."""
