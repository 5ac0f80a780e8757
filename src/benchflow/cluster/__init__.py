"""Host objects on other machines, and the link to them; what they do there is up to the caller.

A `Cluster` has nodes that come and go, and starts one host on each; a `Link` calls its methods. `RayCluster` is the one
that ships, on an existing Ray cluster; `benchflow.testing` has one in this process.
"""

from benchflow.cluster.node_link import Cluster, Link, Node, NodeLost, NodeRefused

__all__ = ["Cluster", "Link", "Node", "NodeLost", "NodeRefused"]
