"""A served task for one agent that connects itself, over MCP, and the port of its harness."""
