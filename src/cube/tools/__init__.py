"""Tools that many benchmarks need: a terminal in a container, a browser."""
