"""Packages and cubes served to trainers and harnesses: one episode, several protocols.

`served_tasks` lists what is served, `Episode` plays it, `Sessions` keeps the episodes of clients, `http_server`
listens. A protocol (ORS, OpenEnv, NeMo Gym, MCP) translates requests into calls of an episode and adds no rules.
Needs the extra `serve`.
"""
