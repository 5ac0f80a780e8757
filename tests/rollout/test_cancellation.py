"""A rollout that is cancelled in any phase says so in its record and leaves nothing behind."""

import json
import os
import tempfile
from pathlib import Path

import anyio
import pytest

from benchflow.rollout import FunctionUser, RolloutConfig, run_rollout

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.sandbox]

OFFLINE = "environment: {network_mode: no-network}\n"


def descendants(root):
    """Processes below one, by pid, with what they are."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = (int(fields[1]), (entry / "cmdline").read_bytes())
            except OSError:
                continue
    found, pending = {}, [root]
    while pending:
        parent = pending.pop()
        for pid, (above, command) in parents.items():
            if above == parent and pid not in found:
                found[pid] = command
                pending.append(pid)
    return found


@pytest.fixture
async def traces(backend, local_store, make_package, tmp_path, monkeypatch):
    """What there is at any time: processes, files of sandboxes, temporary folders, mounts."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    await run_rollout(RolloutConfig(make_package(OFFLINE, name="warm"), "nop", sandbox=backend), tmp_path / "warm-out")

    def look():
        temporary = sorted(path.name for path in Path(tempfile.gettempdir()).iterdir())
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(local_store) in line]
        running = sorted(descendants(os.getpid()).values())
        found = [path for path in local_store.glob("*/*/*") if "layers" not in path.parts]
        folders = sorted(str(path) for path in found if not path.name.startswith("volume-"))  # kept for the next
        return {"processes": running, "temporary": temporary, "mounts": mounts, "folders": folders}

    return Traces(look, await settled(look))


async def settled(look, wanted=None, seconds=10):
    """What there is once it changes no more, or is as wanted: removal goes on for a moment after a sandbox stopped."""
    seen = look()
    with anyio.move_on_after(seconds):
        while True:
            await anyio.sleep(0.3)
            last, seen = seen, look()
            if seen == (last if wanted is None else wanted):
                break
    return seen


class Traces:
    """What there was before a rollout, and what is left afterwards."""

    def __init__(self, look, before):
        self.look = look
        self.before = before

    async def left(self):
        return await settled(self.look, wanted=self.before)


async def cancel_during(phase, config, folder, look, *, delay=0.3):
    """Run until a phase has begun and a moment has passed, then cancel; gives what there was at that moment."""
    begun = anyio.Event()

    def on_phase(name):
        if name == phase:
            begun.set()

    async with anyio.create_task_group() as group:

        async def work():
            await run_rollout(config, folder, on_phase=on_phase)

        group.start_soon(work)
        await begun.wait()
        await anyio.sleep(delay)
        during = look()
        group.cancel_scope.cancel()
    return during


def record(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(
    ("phase", "frontmatter", "verifier"),
    [
        ("environment", "environment:\n  network_mode: no-network\n  healthcheck: {command: sleep 60}\n", None),
        ("agent", OFFLINE, None),
        ("verify", OFFLINE, "sleep 60\n"),
    ],
)
async def test_cancelling_leaves_a_record_and_nothing_else(
    backend, make_package, tmp_path, traces, phase, frontmatter, verifier
):
    package = make_package(frontmatter, {"verifier/test.sh": verifier} if verifier else None)
    script = tmp_path / "agent.sh"
    script.write_text("(setsid sleep 61 &) ; sleep 62\n" if phase == "agent" else "true\n")
    config = RolloutConfig(package, f"script:{script}", sandbox=backend)
    during = await cancel_during(phase, config, tmp_path / "out", traces.look, delay=0.6)
    assert during["processes"] != traces.before["processes"]
    assert await traces.left() == traces.before
    found = record(tmp_path / "out")
    assert (found["status"], found["error"]["category"], found["error"]["phase"]) == ("unscored", "cancelled", phase)
    assert found["error"]["message"] == "Cancelled before it finished."
    assert found["reward"] is None


async def test_cancelling_between_rounds_ends_the_forks_too(backend, make_package, tmp_path, traces):
    asked = []

    async def never(number, instruction, last):
        asked.append(number)
        if number == 1:
            await anyio.sleep_forever()
        return instruction

    script = tmp_path / "agent.sh"
    script.write_text("sleep 0.1\n")
    config = RolloutConfig(make_package(OFFLINE), f"script:{script}", sandbox=backend, user=FunctionUser(never))
    await cancel_during("agent", config, tmp_path / "out", traces.look, delay=2.0)
    assert asked == [0, 1]
    assert await traces.left() == traces.before


async def test_cancelling_before_anything_started_leaves_no_folder(backend, make_package, tmp_path):
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_rollout(RolloutConfig(make_package(OFFLINE), "nop", sandbox=backend), tmp_path / "out")
    assert scope.cancelled_caught
    assert not (tmp_path / "out").exists()


async def test_a_crash_in_our_own_code_cleans_up_as_well(backend, make_package, tmp_path, traces, monkeypatch):
    from benchflow.rollout.drivers import agents

    async def broken(*_, **__):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(agents, "collect", broken)
    result = await run_rollout(RolloutConfig(make_package(OFFLINE), "nop", sandbox=backend), tmp_path / "out")
    assert (result.status, result.error.code) == ("unscored", "crashed")
    assert await traces.left() == traces.before
