"""Served tasks over OpenEnv's wire: Gym-style messages on a WebSocket, one session per connection."""
