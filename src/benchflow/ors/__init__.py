"""Environments on other servers over the Open Reward Standard: a client, and imports. Needs the extra `serve`."""
