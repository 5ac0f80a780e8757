"""Eight environments and a server's sessions on two real Ray nodes, one of which is killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from episode_server import serving, until, write_package

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("ray")]

TRAINER = """
import json, math, sys
from benchflow.trainers import make_vector

def say(**fields):
    print(json.dumps(fields), flush=True)

def step(action):
    _, rewards, _, truncated, infos = envs.step([action] * 8)
    said = {"rewards": [None if math.isnan(each) else each for each in rewards], "truncated": truncated.tolist()}
    codes = list(infos["unscored"]["code"]) if "unscored" in infos else None
    say(**said, codes=codes, nodes=list(infos.get("node", [None] * 8)))

envs = make_vector(sys.argv[1], 8, engine="ray", sandbox="local", base_image="host")
_, infos = envs.reset(seed=1)
say(nodes=list(infos["node"]))
step("sleep 3600 >/dev/null 2>&1 & echo half > /app/answer.txt")
sys.stdin.readline()
step("echo done > /app/answer.txt")
step("submit")
step("submit")
step("submit")
envs.close()
say(closed=True)
"""


@pytest.fixture
def nodes(ray_cluster):
    missing = [name for name in ("one", "two") if name not in ray_cluster.nodes]
    if missing:
        ray_cluster.join(missing)
    return [ray_cluster.nodes[name] for name in ("one", "two")]


def hosts(node):
    """The processes of a node that play."""
    found = []
    for process in node.processes():
        try:
            if b"HostActor" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def left_on(node):
    """Files in the temporary folder of a node, and mounts below it."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(node.folder) in line]
    return [*mounts, *(str(path) for path in node.folder.glob("benchcube-*/*"))]


def test_a_server_plays_its_sessions_on_nodes_and_leaves_nothing_there(ray_cluster, nodes, tmp_path):
    write_package(tmp_path / "plain", "set/plain")
    options = ("--engine", "ray", "--sandbox", "local", "--base-image", "host")
    with serving(tmp_path, tmp_path / "plain", "cube:counter-cube", *options, **ray_cluster.environ) as server:
        sessions = [server.session() for _ in range(4)]
        for sid in sessions:
            assert server.get("/plain/prompt", sid).status_code == 200
        assert [len(hosts(node)) for node in nodes] == [1, 1]
        server.call(sessions[0], "bash", command="echo done > /app/answer.txt")
        assert [server.call(sid, "submit")["output"]["reward"] for sid in sessions] == [1.0, 0.0, 0.0, 0.0]
        left_open = server.session()
        server.call(left_open, "bash", command="sleep 3600 >/dev/null 2>&1 &")
        assert server.stop() == 0
    for node in nodes:
        until(lambda node=node: hosts(node) == [] and left_on(node) == [], 120)


def test_a_killed_node_costs_its_environments_their_episode_and_no_more(ray_cluster, nodes, tmp_path):
    write_package(tmp_path / "plain", "set/plain")
    command = [sys.executable, "-c", TRAINER, str(tmp_path / "plain")]
    process = subprocess.Popen(
        command, env=ray_cluster.environ, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        said = iter(lambda: json.loads(process.stdout.readline()), None)
        first = next(said)["nodes"]
        assert sorted(first.count(node) for node in set(first)) == [4, 4]
        assert next(said)["truncated"] == [False] * 8
        killed = ray_cluster.nodes.pop("two")
        killed.kill()
        until(lambda: killed.processes() == [], 120)
        print(file=process.stdin, flush=True)

        lost = next(said)
        gone = [code is not None for code in lost["codes"]]
        assert sum(gone) == 4
        assert {node for node, out in zip(first, gone, strict=True) if out} & {
            node for node, out in zip(first, gone, strict=True) if not out
        } == set(), "it was not one node"
        assert lost["truncated"] == gone
        assert lost["rewards"] == [None if out else 0.0 for out in gone]
        assert set(lost["codes"]) == {None, "node-lost"}

        again = next(said)  # those that live are scored; the others start again, elsewhere
        assert again["rewards"] == [0.0 if out else 1.0 for out in gone]
        alive = {node for node, out in zip(first, gone, strict=True) if not out}
        assert {node for node, out in zip(again["nodes"], gone, strict=True) if out} == alive
        assert next(said)["truncated"] == [False] * 8
        assert next(said)["truncated"] == [False] * 8
        assert next(said) == {"closed": True}
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    for node in (killed, nodes[0]):
        until(lambda node=node: hosts(node) == [] and left_on(node) == [], 120)
