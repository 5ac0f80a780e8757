"""Every cluster keeps the same promises: the one for tests, and a real one on Ray."""

import pytest

from benchflow.testing import CONFORMANCE_HOST, CallFault, InProcessCluster, check_cluster

pytestmark = pytest.mark.anyio


async def test_the_cluster_in_this_process_keeps_all_promises():
    async with InProcessCluster(CONFORMANCE_HOST, nodes=2) as cluster:
        kept = await check_cluster(cluster)
    assert len(kept) == 8


async def test_a_promise_that_is_not_kept_is_reported_by_its_name():
    async with InProcessCluster(CONFORMANCE_HOST, nodes=1) as cluster:
        cluster.inject(cluster.nodes[0], "echo", CallFault(change=lambda _values: ()))
        with pytest.raises(AssertionError, match="^values arrive as they were sent: not so"):
            await check_cluster(cluster)
