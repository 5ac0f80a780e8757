"""What is done to an environment around the work of a step, for every driver: begin, freeze, keep, restore."""
