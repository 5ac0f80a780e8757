"""Asking an upstream: retries, the connections to all of them, and the wire of each. Loaded with the first call."""
