"""A cube in which an agent repairs a program."""
