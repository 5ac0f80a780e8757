"""What runs in a box, or handles what was written in one, for every backend. Standard library only."""
