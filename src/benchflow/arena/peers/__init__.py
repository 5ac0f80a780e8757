"""Participants as peers: endpoints that record, the bridge to agents, programs in boxes, tools, ways between them."""
