"""Egress of sandboxes without an uplink of their own: a filtering proxy in the driver is the only way out."""
