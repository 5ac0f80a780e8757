"""Where agents and verifiers run: one protocol, several backends."""
