"""What is done to an environment around the work of a step, whoever drives it: begin, freeze, keep, restore."""
