"""What a fork does not take over, on real engines: gone before anything runs in it, and nothing is left behind."""

import pytest

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
