"""Egress of sandboxes without an uplink: a filtering proxy in the driver is the only way out."""
