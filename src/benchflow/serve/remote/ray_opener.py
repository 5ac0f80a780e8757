"""Episodes on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchflow.cluster.ray_cluster import RayCluster
from benchflow.serve.opening import EpisodeSettings
from benchflow.serve.remote.cluster_opener import ClusterOpener
from benchflow.serve.remote.episode_orders import HOST, MOST_EPISODES, HostSettings
from benchflow.serve.server_log import Log, silent


def ray_opener(
    sources: Sequence[str],
    settings: EpisodeSettings,
    address: str | None,
    *,
    records: Path | None = None,
    most: int = MOST_EPISODES,
    log: Log = silent,
) -> ClusterOpener:
    """An opener on the cluster at an address, to which this process is connected now; `UsageError` if it cannot be."""

    def connect(host: HostSettings) -> RayCluster:
        cluster = RayCluster(address, HOST, (host,))
        cluster.connect()
        return cluster

    return ClusterOpener(sources, settings, connect, records=records, most=most, log=log)
