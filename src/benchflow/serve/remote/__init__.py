"""Episodes on the machines of a cluster: a host on each node, and what a server or a trainer knows of them."""
