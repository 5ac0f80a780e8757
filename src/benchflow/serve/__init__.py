"""Packages and cubes served to trainers and harnesses: one episode, spoken over several wires.

`served_tasks` lists what is served, `Episode` plays it, `Sessions` keeps the episodes of clients, `http_server`
listens. A wire (ORS, OpenEnv, NeMo Gym, MCP) translates requests into calls of an episode and adds no rules of its own.
Needs the extra `serve`.
"""
