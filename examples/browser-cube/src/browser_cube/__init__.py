"""A cube in which an agent uses a web page."""
