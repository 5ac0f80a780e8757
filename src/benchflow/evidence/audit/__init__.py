"""The audit of a package: agents that try to score without solving, and what they achieved."""
