"""One agent on one task: plan, environment, agent, freeze, verify, record."""
