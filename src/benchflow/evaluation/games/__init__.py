"""Games between agents: who plays whom, and what their results amount to."""
