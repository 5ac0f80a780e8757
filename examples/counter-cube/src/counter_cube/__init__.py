"""A cube in which an agent counts to a target."""
