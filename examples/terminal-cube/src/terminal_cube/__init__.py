"""A cube in which an agent works in the shell of a container."""
