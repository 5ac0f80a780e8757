"""The proxy and the name service of an egress: what they accept, judge, log and forward."""
