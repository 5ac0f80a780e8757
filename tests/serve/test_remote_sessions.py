"""Sessions on the nodes of a cluster: played as on this machine, lost with their node, never scored for that."""

from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.to_thread
import pytest

from benchflow.errors import UsageError
from benchflow.record import read_model_calls
from benchflow.rewards import Attributed, Scored, Unscored
from benchflow.serve.episode import CallRefused, score_calls
from benchflow.serve.opening import EpisodeSettings, Opener
from benchflow.serve.remote.cluster_opener import ClusterOpener
from benchflow.serve.remote.episode_orders import HOST
from benchflow.serve.sessions import NoRoom, Sessions
from benchflow.testing import CallFault, InProcessCluster, ModelServer, VirtualTimeLoop
from episode_server import write_package

pytestmark = pytest.mark.anyio
DONE = {"command": "echo done > /app/answer.txt"}
CUBE = "cube:counter-cube"


JUDGE = {
    "verifier/verifier.md": "---\nverifier:\n  strategies:\n    prose: {type: llm-judge, rubric: rubric.toml}\n---\n",
    "verifier/rubric.toml": (
        '[judge]\nmodel = "openai/test-model"\n[[criterion]]\nname = "right"\ndescription = "The answer is 42."\n'
    ),
}


def judged(folder):
    """A package whose verifier is a model."""
    write_package(folder, "set/judged", files=JUDGE)
    (folder / "verifier/test.sh").unlink()


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.fixture
def packages(tmp_path):
    root = tmp_path / "set"
    write_package(root / "plain", "set/plain")
    write_package(root / "dense", "set/dense", front="metadata: {step_rewards: true}\n")
    write_package(root / "crash", "set/crash", tests="#!/bin/sh\nexit 3\n")
    (root / "broken").mkdir()
    (root / "broken/task.md").write_text("---\ntask: {name: set/broken}\nagent: {tmieout_sec: 3}\n---\nDo it.\n")
    return root


@pytest.fixture
def opened(packages, sandbox_name):
    """A server's opener on a cluster of nodes in this process, and the cluster."""

    @asynccontextmanager
    async def opened(nodes=2, *, sources=None, **options):
        cluster = None

        def connect(host):
            nonlocal cluster
            cluster = InProcessCluster(HOST, (host,), nodes=nodes)
            return cluster

        opener = ClusterOpener(sources or [str(packages), CUBE], EpisodeSettings(sandbox_name), connect, **options)
        await cluster.__aenter__()
        try:  # what is raised in the block stays what it is
            async with opener:
                yield opener, cluster
        finally:
            await cluster.__aexit__(None, None, None)

    return opened


def named(opener, name):
    every = [task for environment in opener.tasks.environments.values() for task in environment.all_tasks()]
    return next(task for task in every if task.id == name)


def held(cluster):
    """How many episodes each node plays."""
    return [len(cluster.host(node)._held) for node in cluster.nodes]


async def played(episode, calls):
    """All that a client sees of an episode."""
    seen = []
    try:
        seen.append(await episode.begin())
        for name, arguments in calls:
            try:
                seen.append(await episode.call(name, arguments))
            except CallRefused as refused:
                seen.append((refused.reason, str(refused)))
        seen.append([tool.name for tool in episode.tools()])
        seen.append((await episode.finish()).record())
    except Attributed as error:
        seen.append(error.verdict)
    finally:
        await episode.close()
    return seen, episode.verdict and episode.verdict.record(), episode.progress.calls


@pytest.mark.parametrize(
    ("task", "calls"),
    [
        ("set/plain", [("bash", DONE), ("nope", {}), ("bash", {"wrong": 1}), ("submit", {}), ("bash", DONE)]),
        ("set/plain", [("write_file", {"path": "/app/answer.txt", "text": "half\n"}), ("bash", {"command": "exit 3"})]),
        ("set/dense", [("bash", DONE), ("submit", {"message": "There."})]),
        ("set/crash", [("submit", {})]),
        ("set/crash", []),
        ("set/broken", []),
        ("up-3", [("increment", {})] * 3),
        ("up-3", [("increment", {"by": "x"}), ("submit", {})]),
    ],
)
async def test_a_session_on_a_node_is_the_one_that_this_machine_would_play(opened, packages, sandbox_name, task, calls):
    async with Opener([str(packages), CUBE], EpisodeSettings(sandbox_name)) as here:
        expected = await played(here.open(named(here, task)), calls)
    async with opened() as (opener, cluster):
        assert await played(opener.open(named(opener, task)), calls) == expected
        assert held(cluster) == [0, 0]
        assert opener.places.room() == 512


async def test_sessions_are_spread_and_a_package_travels_once_to_each_node(opened):
    async with opened() as (opener, cluster):
        episodes = [opener.open(named(opener, "set/plain")) for _ in range(6)]
        async with anyio.create_task_group() as group:
            for episode in episodes:
                group.start_soon(episode.begin)
        assert held(cluster) == [3, 3]
        assert [cluster.calls[node.id, "take"] for node in cluster.nodes] == [1, 1]
        for episode in episodes:
            await episode.close()
        assert held(cluster) == [0, 0]


async def test_candidates_are_scored_on_copies_on_the_node(opened):
    async with opened() as (opener, _):
        episode = opener.open(named(opener, "set/plain"))
        await episode.begin()
        done, nothing = await score_calls(episode, [[("bash", DONE)], []])
        assert (done.reward, nothing.reward) == (1.0, 0.0)
        assert (await episode.finish()).reward == 0.0


async def test_a_lost_node_ends_its_sessions_unscored_and_the_others_continue(opened):
    async with opened() as (opener, cluster):
        plain = named(opener, "set/plain")
        first, second, third = (opener.open(plain) for _ in range(3))
        for episode in (first, second, third):
            await episode.begin()
        lost, alive = cluster.nodes
        assert [first.node, second.node, third.node] == [str(lost), str(alive), str(lost)]
        cluster.inject(lost, "call", CallFault(lost="during"))
        for episode in (first, third):  # one in a call, one between two calls
            with pytest.raises(Attributed) as caught:
                await episode.call("bash", DONE)
            assert (caught.value.verdict.category, caught.value.verdict.code) == ("infrastructure", "node-lost")
            assert str(lost) in caught.value.verdict.reason
            assert episode.verdict.reward is None
            assert await episode.finish() == caught.value.verdict
            with pytest.raises(CallRefused):
                await episode.call("bash", DONE)
        assert (await second.call("bash", DONE)).metadata["exit_code"] == 0
        assert (await second.finish()).reward == 1.0
        again = opener.open(plain)
        await again.begin()
        assert again.node == str(alive)
        await again.close()


async def test_a_node_that_does_not_answer_is_lost_and_its_late_answer_counts_for_nothing(opened):
    async with opened() as (opener, cluster):
        episode = opener.open(named(opener, "set/plain"))
        await episode.begin()
        silent = cluster.nodes[0]
        cluster.cut(silent)
        with pytest.raises(Attributed) as caught:
            await episode.call("submit", {})
        assert caught.value.verdict.code == "node-lost"
        cluster.mend(silent)
        await anyio.sleep(5)
        assert isinstance(episode.verdict, Unscored)
        assert opener.places.room() in (256, 512)


async def test_without_a_node_sessions_are_refused_until_one_joins(opened):
    told = []
    async with opened(nodes=1, log=lambda event, **fields: told.append(fields["message"])) as (opener, cluster):
        sessions = Sessions(opener.open)
        plain = named(opener, "set/plain")
        async with sessions.running():
            playing = sessions.begin(plain)
            await playing.wait_ready()
            cluster.lose(cluster.nodes[0])
            await anyio.sleep(5)
            with pytest.raises(NoRoom, match="No node is left in the cluster; sessions begin again"):
                sessions.begin(plain)
            assert sessions.metrics.refused_sessions == 1
            assert any("No node is left" in sentence for sentence in told)
            with pytest.raises(Attributed, match="left the cluster"):
                await playing.begun.call("bash", DONE)
            cluster.grow()
            with anyio.fail_after(60):
                await opener.places.wait_for_change()
            again = sessions.begin(plain)
            await again.wait_ready()
            assert (await sessions.finish(again)).reward == 0.0
    assert any("has joined" in sentence for sentence in told)


async def test_a_node_that_is_full_gets_nothing_more(opened):
    async with opened(nodes=2, most=1) as (opener, cluster):
        plain = named(opener, "set/plain")
        first, second = opener.open(plain), opener.open(plain)
        with pytest.raises(NoRoom, match="plays 1 episodes, as many as it may"):
            opener.open(plain)
        await first.close()  # it was never begun
        third = opener.open(plain)
        await third.begin()
        assert sum(held(cluster)) == 1
        await second.close()
        await third.close()


async def test_a_session_that_ends_while_it_begins_leaves_nothing_on_the_node(opened):
    async with opened(nodes=1) as (opener, cluster):
        cluster.inject(cluster.nodes[0], "begin", CallFault(late=5))
        episode = opener.open(named(opener, "set/plain"))
        with anyio.move_on_after(1):
            await episode.begin()
        await episode.close()
        assert held(cluster) == [0]
        cluster.inject(cluster.nodes[0], "begin", CallFault(delay=5))  # the order arrives after its end
        episode = opener.open(named(opener, "set/plain"))
        with anyio.move_on_after(1):
            await episode.begin()
        await episode.close()
        await anyio.sleep(15)
        assert held(cluster) == [0], "what the driver does not know is not ended"


async def test_a_node_that_is_cut_off_from_its_driver_ends_its_episodes_by_itself(opened):
    async with opened(nodes=2, lease_sec=300) as (opener, cluster):
        episode = opener.open(named(opener, "set/plain"))
        await episode.begin()
        cut = cluster.nodes[0]
        host = cluster.host(cut)
        assert len(host._held) == 1
        cluster.cut(cut)
        await anyio.sleep(200)
        assert len(host._held) == 1
        await anyio.sleep(200)
        assert len(host._held) == 0
        with pytest.raises(Attributed, match="has not responded"):
            await episode.call("bash", DONE)


async def test_secrets_of_clients_are_not_sent_to_nodes(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "of-the-node")
    front = "benchflow: {secrets: [{name: MY_KEY, env: MY_KEY, scope: agent}]}\n"
    folder = write_package(tmp_path / "keyed", "set/keyed", front=front)
    async with opened(sources=[str(folder)]) as (opener, cluster):
        episode = opener.open(named(opener, "set/keyed"), {"MY_KEY": "canary-7193"})
        with pytest.raises(Attributed, match="MY_KEY, and secrets of clients are not sent") as caught:
            await episode.begin()
        assert "canary" not in str(caught.value)
        assert cluster.calls[cluster.nodes[0].id, "begin"] == 0
        assert opener.places.room() == 512


async def test_a_node_where_a_task_of_a_cube_would_be_another_one_plays_none(opened, monkeypatch):
    async with opened(nodes=1) as (opener, _):
        up = named(opener, "up-3")
        changed = replace(up, digest="sha256:" + "0" * 64)
        with pytest.raises(Attributed, match="reads the configuration of its task differently") as caught:
            await opener.open(changed).begin()
        assert caught.value.verdict.code == "cube-differs"
    monkeypatch.setattr("benchflow.evaluation.scaled.facts.cube_digest", lambda name: None)
    with pytest.raises(UsageError, match="does not have the cube 'counter-cube' installed"):
        async with opened(nodes=1, sources=[CUBE]):
            pass


async def test_a_task_that_no_node_can_play_is_refused_before_anything_listens(opened, tmp_path):
    folder = write_package(tmp_path / "large", "set/large", front="")
    text = (folder / "task.md").read_text().replace("workdir: /app", "workdir: /app, memory_mb: 999999999")
    (folder / "task.md").write_text(text)
    with pytest.raises(UsageError, match="No node of the cluster can run .*999999999 MB are declared"):
        async with opened(sources=[str(folder)]):
            pass


async def test_a_package_that_was_damaged_on_a_node_is_sent_again(opened):
    async with opened(nodes=1) as (opener, cluster):
        plain, node = named(opener, "set/plain"), cluster.nodes[0]
        first = opener.open(plain)
        await first.begin()
        await first.close()
        [package] = cluster.host(node)._arrivals._packages.values()
        script = package.path / "verifier/test.sh"
        script.write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        second = opener.open(plain)
        await second.begin()
        assert (await second.finish()).reward == 0.0
        assert cluster.calls[node.id, "take"] == 2


async def test_a_package_that_changed_after_it_was_listed_is_not_sent(opened, packages):
    async with opened() as (opener, cluster):
        plain = named(opener, "set/plain")
        (packages / "plain/verifier/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        with pytest.raises(Attributed, match="has changed since"):
            await opener.open(plain).begin()
        assert cluster.calls[cluster.nodes[0].id, "take"] == 0


async def test_scored_means_what_the_verifier_said_with_its_metrics(opened):
    async with opened() as (opener, _):
        episode = opener.open(named(opener, "set/plain"))
        await episode.begin()
        ended = await episode.call("submit", {})
        assert isinstance(episode.verdict, Scored)
        assert ended.reward == 0.0 == ended.metadata["rewards"]["reward"]


@pytest.mark.slow
async def test_what_judges_asked_on_a_node_is_recorded_on_the_server(opened, tmp_path, monkeypatch):
    judged(tmp_path / "judged")
    records = tmp_path / "records"
    with ModelServer(lambda _: {"score": "yes", "reason": "it is"}) as models:
        for name, value in models.environment.items():
            monkeypatch.setenv(name, value)

        async def play():
            async with opened(sources=[str(tmp_path / "judged")], records=records) as (opener, cluster):
                episode = opener.open(named(opener, "set/judged"))
                await episode.begin()
                await episode.call("bash", {"command": "echo 42 > /app/answer.txt"})
                assert (await episode.call("submit", {})).reward == 1.0
                await episode.close()
                assert held(cluster) == [0, 0]

        await anyio.to_thread.run_sync(anyio.run, play)  # on a loop whose time is that of the model server
    [file] = records.rglob("model_calls.jsonl")
    assert [call.place.source for call in read_model_calls(file)] == ["judge"]
    assert models.api_key not in file.read_text()
