"""Agents that speak the Agent Client Protocol (version 1) over their standard streams, inside the sandbox."""
