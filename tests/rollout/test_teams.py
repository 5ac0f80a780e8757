"""Teams: roles at the same time or apart, what they hand over, and what they learn of each other."""

import json

import anyio
import pytest
from tests.rollout.conftest import Script, ShellAgent

from benchflow.errors import SandboxFailure
from benchflow.rollout.phases import handing_over

pytestmark = pytest.mark.anyio

VERIFIER = """\
found="$(cat /app/a.txt /app/parts/b.txt /app/secret.txt 2>/dev/null)"
if [ "$found" = "$(printf 'ok\nok\n')" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
TEAM = """\
environment: {{network_mode: no-network}}
agents:
  roles:
    ann: {{agent: ann{ann}}}
    bob: {{agent: bob}}
    cyd: {{agent: cyd}}
scenes:
  - name: work
    turns: [ann, bob]
  - name: join
    turns: [cyd]
benchflow:
  teams:
    desk:
      handoff:
        mode: {mode}
        workspace_visibility: {workspace}
        trajectory_visibility: {trajectory}
        artifacts: [{artifacts}]
"""


class Cast:
    """Agents by name, each with one command, or one callable, per prompt."""

    def __init__(self, **commands):
        self.scripts = {name: Script(list(own if isinstance(own, tuple) else (own,))) for name, own in commands.items()}

    def make(self, name, model):
        return ShellAgent(name, self.scripts.setdefault(name, Script()))

    def prompt(self, name):
        return self.scripts[name].prompts[0][1]


@pytest.fixture
def play(run, make_package):
    async def played(
        cast, *, mode="parallel", workspace="isolated", trajectory="none", artifacts="a.txt, parts", ann=""
    ):
        text = TEAM.format(mode=mode, workspace=workspace, trajectory=trajectory, artifacts=artifacts, ann=ann)
        return await run(make_package(text, verifier=VERIFIER), script=cast)

    return played


@pytest.fixture
def handoffs(events):
    """What was handed over: role, then status (and more) by path."""

    def found():
        told = [event for event in events() if event["type"] == "handoff"]
        return [(event.get("role"), {item["path"]: item for item in event["artifacts"]}) for event in told]

    return found


class Meeting:
    """Two roles that wait for each other: they come together only if they work at the same time."""

    def __init__(self, size=2):
        self._missing = size
        self._all = anyio.Event()

    def then(self, command):
        async def arrive(context):
            self._missing -= 1
            if not self._missing:
                self._all.set()
            with anyio.fail_after(30):
                await self._all.wait()
            return command

        return arrive


async def test_isolated_roles_work_at_the_same_time_and_deliver_what_is_declared(play, handoffs, events):
    meeting = Meeting()
    cast = Cast(
        ann=meeting.then("echo ok > a.txt; echo ok > secret.txt"),
        bob=meeting.then("echo sees; ls; mkdir parts; echo ok > parts/b.txt; echo mine > secret.txt"),
        cyd="cat a.txt parts/b.txt; ls",
    )
    result = await play(cast)
    assert (result.status, result.reward) == ("scored", 1.0), result.error
    said = {event["role"]: event["text"] for event in events() if event["type"] == "agent_message"}
    assert "a.txt" not in said["bob"]
    assert said["cyd"].split() == ["ok", "ok", "a.txt", "parts"]
    first, second, last = handoffs()
    assert (first[0], first[1]["/app/a.txt"]["status"], first[1]["/app/parts"]["status"]) == (
        "ann",
        "handed",
        "missing",
    )
    assert (second[0], second[1]["/app/parts"]["files"]) == ("bob", 1)
    assert last == ("cyd", {path: last[1][path] for path in ("/app/a.txt", "/app/parts")})
    assert {item["status"] for item in last[1].values()} == {"unchanged"}


async def test_isolated_roles_one_after_the_other_receive_what_was_handed_over(play, handoffs, rounds):
    cast = Cast(ann="echo ok > a.txt; echo x > other.txt", bob="ls; echo ok >> a.txt; rm -f other.txt", cyd="true")
    result = await play(cast, mode="sequential", trajectory="metadata")
    assert result.reward == 1.0, result.error
    assert cast.prompt("bob").endswith("Handoff from ann (scene work): 0 tool calls in its last turn.")
    assert [(line["role"], line.get("handoff_from")) for line in rounds()] == [
        ("ann", None),
        ("bob", "ann"),
        ("cyd", "bob"),
    ]
    assert handoffs()[1][1]["/app/a.txt"]["replaces"] == "ann"


async def test_roles_of_a_shared_workspace_work_at_the_same_time_in_it(play, events):
    meeting = Meeting()
    cast = Cast(
        ann=meeting.then("echo ok > a.txt"),
        bob=meeting.then("mkdir parts; echo ok > parts/b.txt"),
        cyd="cat a.txt parts/b.txt",
    )
    result = await play(cast, workspace="shared")
    assert result.reward == 1.0, result.error
    assert [event.get("role") for event in events() if event["type"] == "handoff"] == [None, "cyd"]


async def test_of_two_that_hand_over_the_same_file_the_later_one_of_the_scene_counts(play, handoffs):
    cast = Cast(ann="sleep 1; echo no > a.txt", bob="echo ok > a.txt", cyd="echo ok >> a.txt")
    result = await play(cast, artifacts="a.txt")
    assert result.reward == 1.0, result.error
    assert [(role, items["/app/a.txt"].get("replaces")) for role, items in handoffs()] == [
        ("ann", None),
        ("bob", "ann"),
        ("cyd", "bob"),
    ]


async def test_everything_that_teammates_did_is_given_to_the_next_if_declared(play, events, tmp_path):
    look = "cat /handoff/cyd/trajectory.jsonl; echo ok >> a.txt"
    cast = Cast(ann="echo ok > a.txt; echo ann was here", bob="true", cyd=look)
    result = await play(cast, trajectory="full")
    assert result.reward == 1.0, result.error
    told = [event["text"] for event in events() if event["type"] == "agent_message" and event["role"] == "cyd"]
    lines = [json.loads(line) for line in told[0].splitlines()]
    assert {line["role"] for line in lines} == {"ann", "bob"}
    assert "ann was here\n" in [line.get("text") for line in lines]
    assert "/handoff/cyd/trajectory.jsonl" in cast.prompt("cyd")
    assert "/handoff" not in cast.prompt("bob")


async def test_a_sequential_team_in_one_workspace_may_share_everything_and_leaves_no_trace(run, make_package, tmp_path):
    text = TEAM.format(mode="sequential", workspace="shared", trajectory="full", artifacts="", ann="")
    look = "grep -c 'ann was here' /handoff/bob/trajectory.jsonl > a.txt; echo ok > a.txt; echo ok >> a.txt"
    cast = Cast(ann="echo ann was here", bob=look, cyd="true")
    verifier = "test ! -e /handoff && " + VERIFIER
    result = await run(make_package(text, verifier=verifier), script=cast)
    assert result.reward == 1.0, result.error
    assert cast.prompt("cyd").count("Handoff from") == 1


HOSTILE = {
    "a link out": "ln -s /etc/passwd a.txt",
    "a link within": "echo ok > real.txt; ln -s real.txt a.txt",
    "more than may be handed over": "head -c 3000 /dev/zero > a.txt",
    "a folder with a link out": "mkdir a.txt; ln -s /etc a.txt/etc; echo ok > a.txt/x",
}


@pytest.mark.sandbox
@pytest.mark.parametrize("command", HOSTILE.values(), ids=HOSTILE)
async def test_what_is_no_plain_file_within_the_limits_is_not_handed_over(
    play, handoffs, monkeypatch, command, tmp_path
):
    monkeypatch.setattr(handing_over, "MAX_BYTES", 2000)
    cast = Cast(ann=command, bob="true", cyd="ls")
    result = await play(cast, artifacts="a.txt")
    assert (result.status, result.reward) == ("scored", 0.0), result.error
    found = handoffs()[0][1]["/app/a.txt"]
    assert found["status"] == "refused", found
    assert "root:" not in (tmp_path / "out" / "trajectory.jsonl").read_text()


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("ann", "bob"),
    [("mkdir a.txt; echo ok > a.txt/x", "echo ok > a.txt"), ("echo ok > a.txt", "mkdir a.txt; echo ok > a.txt/x")],
    ids=["a file over a folder", "a folder over a file"],
)
async def test_roles_that_disagree_what_a_path_is_cannot_avoid_a_score(play, ann, bob):
    result = await play(Cast(ann=ann, bob=bob, cyd="rm -rf a.txt; mkdir a.txt; true"), artifacts="a.txt")
    assert (result.status, result.reward) == ("scored", 0.0), result.error


@pytest.mark.sandbox
async def test_an_isolated_role_can_neither_see_nor_end_nor_change_what_another_has(play, events):
    meeting, after = Meeting(), Meeting()
    begun = "sleep 61.5 & echo ok > a.txt; echo ok > /tmp/mine"

    async def ann(context):
        await context.sandbox.exec(f"({begun}) >/dev/null 2>&1 </dev/null", user=context.user)
        await meeting.then("")(context)
        await after.then("")(context)
        return "cat a.txt /tmp/mine; pgrep -f 'sleep 61.5' >/dev/null && echo ok >> a.txt"

    async def bob(context):
        await meeting.then("")(context)
        attack = "ls /app /tmp; pgrep -f 'sleep 61.5'; echo bad > a.txt; echo bad > /tmp/mine; kill -9 -1"
        done = await context.sandbox.exec(attack, user=context.user)
        await after.then("")(context)
        return f"echo '{done.stdout.decode()}'; rm -f a.txt"

    result = await play(Cast(ann=ann, bob=bob, cyd="true"), artifacts="a.txt")
    assert result.reward == 1.0, result.error
    said = {event["role"]: event["text"] for event in events() if event["type"] == "agent_message"}
    assert said["ann"].split() == ["ok", "ok"]
    assert "mine" not in said["bob"]


async def test_a_role_that_crashes_ends_the_others_and_is_the_failure(play):
    waited = anyio.Event()

    async def crash(context):
        raise RuntimeError("out of order")

    async def wait(context):
        try:
            await anyio.sleep(60)
        finally:
            waited.set()

    cast = Cast(ann=crash, bob=wait, cyd="true")
    result = await play(cast)
    assert (result.status, result.error.category, result.error.code) == ("unscored", "agent", "crashed")
    assert "out of order" in result.error.message
    assert waited.is_set()
    assert cast.scripts["bob"].closed == 1


async def test_a_role_that_never_ends_loses_its_turn_only(play, rounds):
    cast = Cast(ann="sleep 60", bob="echo ok > a.txt", cyd="echo ok >> a.txt")
    result = await play(cast, ann=", timeout_sec: 1")
    assert (result.reward, result.agent.timed_out) == (1.0, True), result.error
    assert {line["role"]: line["stop_reason"] for line in rounds()}["cyd"] == "end_turn"


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 0.0), ("nop", 0.0)])
async def test_fixed_agents_work_alone_whatever_the_team_is(run, make_package, tmp_path, agent, reward):
    text = TEAM.format(mode="parallel", workspace="isolated", trajectory="none", artifacts="a.txt", ann="")
    result = await run(make_package(text, verifier=VERIFIER), agent)
    assert (result.status, result.reward) == ("scored", reward)


@pytest.mark.sandbox
async def test_a_cancelled_team_leaves_no_box(play):
    boxes = []
    begun = Meeting()
    async with anyio.create_task_group() as group:

        async def work(context):
            boxes.append(context.sandbox)
            await begun.then("")(context)
            group.cancel_scope.cancel()
            await anyio.sleep(60)

        group.start_soon(play, Cast(ann=work, bob=work))
    assert len({box.id for box in boxes}) == 2
    for box in boxes:
        with pytest.raises(SandboxFailure):
            await box.exec("true", timeout=10)


async def test_an_artifact_within_another_is_handed_over_once(play, handoffs):
    cast = Cast(ann="mkdir parts; echo ok > parts/b.txt; echo ok > a.txt", bob="true", cyd="true")
    result = await play(cast, artifacts="parts, parts/b.txt, /app/parts/b.txt, a.txt")
    assert result.reward == 1.0, result.error
    assert handoffs()[0][1]["/app/parts"]["files"] == 1
    assert handoffs()[0][1]["/app/parts/b.txt"]["status"] == "unchanged"
