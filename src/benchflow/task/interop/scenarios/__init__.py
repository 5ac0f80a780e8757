"""Scenario files of AgentBeats, in and out: one green agent that assesses, its participants, and its configuration."""
