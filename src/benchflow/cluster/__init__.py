"""Machines that work together: which are in the cluster now, and host objects on them."""
