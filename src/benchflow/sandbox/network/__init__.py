"""Egress of sandboxes that have no uplink of their own: a filtering proxy in the driver is the only way out."""
