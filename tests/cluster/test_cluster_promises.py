"""Every cluster keeps the same promises: the one for tests, and a real one on Ray."""

import json
import subprocess
import sys

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


ON_RAY = """
import anyio, json
from benchflow.cluster.ray_cluster import RayCluster
from benchflow.testing import CONFORMANCE_HOST, check_cluster

cluster = RayCluster(None, CONFORMANCE_HOST)
cluster.connect()
print(json.dumps(anyio.run(check_cluster, cluster)))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_real_ray_cluster_keeps_all_promises(ray_cluster):
    if "one" not in ray_cluster.nodes:
        ray_cluster.add("one")
    done = subprocess.run([sys.executable, "-c", ON_RAY], env=ray_cluster.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])) == 8
