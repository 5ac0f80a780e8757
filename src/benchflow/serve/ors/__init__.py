"""The Open Reward Standard: its server."""
