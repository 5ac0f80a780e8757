"""Nodes while they work: their clocks, their breakers, and what is shown of them."""
