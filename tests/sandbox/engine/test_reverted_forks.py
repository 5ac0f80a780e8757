"""What a fork does not take over, on real engines: gone before anything runs in it, and nothing is left behind."""

from dataclasses import replace

import pytest

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.machine.ownership import OWNED
from benchflow.sandbox.protocol import Mount
from benchflow.testing.promise_table import changed, forked

ENGINES = [
    pytest.param(name, marks=[pytest.mark.engine, pytest.mark.xdist_group(name)]) for name in ("docker", "podman")
]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.parametrize("bench", ENGINES, indirect=True, scope="module"),
]

PLANT = (
    "echo mine > /app/mine; mkdir -p /opt/new/deep /opt/half; echo x > /opt/new/deep/x; echo x > /opt/half/kept;"
    "echo x > /opt/half/evil; ln -s /etc /opt/link; echo evil > /usr/bin/evil"
)
UNWANTED = ("/opt/new", "/opt/half/evil", "/opt/link", "/usr/bin/evil")
KEPT = {"/app/mine", "/opt/half", "/opt/half/kept"}


async def left(bench):
    """Containers and images that this backend's owner has."""
    host = await bench.backend.connect()
    mine = ("--all", "--quiet", "--filter", f"label={OWNED}={host.owner.id}")
    return {kind: set((await host.client.ask(kind, *mine)).split()) for kind in ("ps", "images")}


@pytest.fixture(params=["by its layers", "by the engine"])
async def listed(request, bench, monkeypatch):
    """Changes are read from the layers of a container, or as on an engine whose files are elsewhere."""
    host = await bench.backend.connect()
    monkeypatch.setattr(host, "facts", replace(host.facts, reads_layers=request.param == "by its layers"))


async def test_both_ways_to_list_changes_agree(bench, monkeypatch):
    host = await bench.backend.connect()
    assert host.facts.reads_layers
    plant = f"""{PLANT}; cd /opt; touch -r built.txt /tmp/t; cat built.txt > /tmp/b; cat /tmp/b > built.txt
        touch -r /tmp/t built.txt; chmod 600 /etc/group; ln /etc/passwd /opt/hard; rm doomed.txt; mkfifo /opt/pipe
        touch -d '2040-01-01 00:00:00' /opt/future; printf x > "$(printf '/opt/a b\\nc')"
        """
    async with bench.sandbox() as origin:
        assert (await origin.exec(plant, user="root")).ok
        found = [await changed(origin)]
        monkeypatch.setattr(host, "facts", replace(host.facts, reads_layers=False))
        found.append(await changed(origin))
        assert found[0] == found[1]
        assert {path: found[0][path].kind for path in ("/opt/built.txt", "/etc/group", "/opt/hard", "/etc/passwd")} == {
            "/opt/built.txt": "changed",
            "/etc/group": "changed",
            "/opt/hard": "added",
            "/etc/passwd": "changed",
        }
        async with forked(origin) as fork:
            assert await changed(fork) == found[0]


@pytest.mark.usefixtures("listed")
async def test_what_was_added_is_gone_from_a_fork_and_not_among_its_changes(bench):
    async with bench.sandbox() as origin:
        await origin.exec(PLANT, user="root")
        before = await left(bench)
        async with forked(origin, revert=lambda _: UNWANTED) as fork:
            shown = await fork.exec("ls -d /opt/* /opt/half/* /usr/bin/evil /etc/passwd 2>/dev/null")
            assert shown.stdout.decode().split() == [
                *("/etc/passwd", "/opt/built.txt", "/opt/doomed.txt", "/opt/half", "/opt/half/kept")
            ]
            assert set(await changed(fork)) == KEPT
            await fork.exec("echo again > /usr/bin/evil; echo more >> /opt/half/kept", user="root")
            kinds = {path: change.kind for path, change in (await changed(fork)).items()}
            assert kinds == dict.fromkeys([*KEPT, "/usr/bin/evil"], "added")
            async with forked(fork, revert=lambda _: ["/usr/bin"]) as again:
                assert set(await changed(again)) == KEPT
        assert await left(bench) == before
        assert set(UNWANTED) <= set(await changed(origin))


@pytest.mark.parametrize("target", ["/opt/new", "/opt/new/deep", "/opt/new/deep/x/below", "/opt/link/below"])
async def test_what_is_mounted_where_something_unwanted_was_is_in_place(bench, tmp_path, target):
    (tmp_path / "given").write_text("given")
    async with bench.sandbox() as origin:
        await origin.exec(PLANT, user="root")
        before = await left(bench)
        mounts = [Mount(tmp_path, target)]
        async with forked(origin, mounts=mounts, revert=lambda _: UNWANTED) as fork:
            assert (await fork.exec(["cat", f"{target}/given"], user="root")).stdout == b"given"
            assert not (await fork.exec(f"ls /opt/half/evil /etc/below; echo x > {target}/given", user="root")).ok
            found = await changed(fork)
            assert {path for path, change in found.items() if change.type != "directory"} == KEPT - {"/opt/half"}
        assert await left(bench) == before


async def test_a_choice_that_fails_leaves_nothing_of_the_fork(bench):
    async with bench.sandbox() as origin:
        await origin.exec(PLANT, user="root")
        before = await left(bench)

        def revert(_):
            raise ValueError("no choice")

        with pytest.raises(ValueError, match="no choice"):
            await origin.fork(revert=revert)
        assert await left(bench) == before
        assert set(await changed(origin)) >= KEPT


async def test_what_was_started_after_all_was_ended_stands_still_for_a_fork_and_continues(bench):
    async with bench.sandbox() as origin:
        await origin.exec("echo 0 > one; echo 0 > two")
        await origin.kill_processes()
        count = "i=0; while :; do i=$((i+1)); for name in one two; do echo $i > new; mv new $name; done; done"
        process = await origin.process(count)
        for _ in range(3):
            async with forked(origin) as fork:
                one, two = [int(await fork.read_file(f"/app/{name}")) for name in ("one", "two")]
                assert one - two in (0, 1)
        await origin.exec("rm -f one; while [ ! -e one ]; do sleep 0.1; done", timeout=30)
        assert await origin.has_processes()
        await origin.kill_processes()
        await process.wait()
        assert not await origin.has_processes()


async def test_a_program_stands_in_for_another_one_or_it_is_said_that_none_can(bench):
    async with bench.sandbox() as sandbox:
        await sandbox.exec("printf '#!/bin/sh\\necho old $1' > /usr/bin/tool; chmod 755 /usr/bin/tool", user="root")
        await sandbox.stand_in("/usr/bin/tool", b'#!/bin/sh\nexec /usr/bin/.kept "new $1"\n', "/usr/bin/.kept")
        assert (await sandbox.exec(["tool", "x"])).stdout == b"old new x\n"
        with pytest.raises(SandboxFailure, match="/usr/bin/none") as caught:
            await sandbox.stand_in("/usr/bin/none", b"", "/usr/bin/.none")
        assert caught.value.code == "stand-in-failed"
