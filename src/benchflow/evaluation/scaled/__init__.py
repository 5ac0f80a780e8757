"""Jobs on many machines: what a task needs of a node, which node gets it, and what is shown while nodes work."""
