"""What every sandbox backend promises of itself, its states and its life, one function each; `check_backend` runs them.

A promise is checked with nothing but `/bin/sh` and the usual file tools of the environment. One that needs a capability
the backend does not have is left out: the backend refuses what needs it.
"""

from __future__ import annotations

from typing import Any, Final

import anyio

from benchflow.errors import EnvironmentFailure, RuntimeFailure, UnsupportedError
from benchflow.sandbox.protocol import (
    CAPABILITIES,
    Change,
    Limits,
    Mount,
    NetworkMode,
    NetworkPolicy,
    Sandbox,
)
from benchflow.testing.promise_table import (
    PATIENCE,
    PAUSE,
    BackendFault,
    Subject,
    beating,
    beats,
    changed,
    equal,
    forked,
    promise,
    refused,
    require,
    until_beating,
)

_MODES: Final[tuple[NetworkMode, ...]] = ("none", "public", "allowlist")
_LIMITS: Final[dict[str, dict[str, Any]]] = {
    "limits.cpu": {"cpus": 0.5},
    "limits.memory": {"memory_mb": 256},
    "limits.pids": {"pids": 64},
    "limits.disk": {"storage_mb": 64},
    "gpu": {"gpus": 1},
}


_REMOVE_ONE: Final = (
    "for f in /etc/*s; do [ -f $f ] && [ ! -L $f ] && rm -f $f && echo $f && break; done 2>/dev/null; true"
)
"""Removes some file that the environment was built with and says which; some are mounts, which cannot be removed."""


# --- what it says about itself ---


@promise()
async def capabilities_are_declared_and_what_is_missing_says_how_to_get_it(it: Subject) -> None:
    declared = it.backend.declared
    require(isinstance(declared, frozenset), "`declared` is not a frozenset")
    require(declared <= CAPABILITIES.keys(), f"unknown capabilities: {sorted(declared - CAPABILITIES.keys())}")
    status = await it.backend.status()
    equal(status.name, it.backend.name, "the name in its status")
    require(status.usable, f"it is not usable here: {status.reason}")
    require(status.capabilities <= declared, f"not declared: {sorted(status.capabilities - declared)}")
    for missing in status.missing:
        require(missing.capability not in status.capabilities, f"{missing.capability} is both there and missing")
        require(missing.how, f"it does not say how to get {missing.capability}")


@promise()
async def what_it_lacks_is_refused_before_anything_starts(it: Subject) -> None:
    for capability in sorted(_LIMITS.keys() - it.capabilities):
        async with refused(f"a limit that needs {capability}", UnsupportedError):
            await it.sandbox(limits=Limits(**_LIMITS[capability])).start()
    for mode in _MODES:
        if f"network.{mode}" not in it.capabilities:
            async with refused(f"the network {mode}", UnsupportedError):
                await it.sandbox(network=NetworkPolicy(mode, ("example.com",))).start()


@promise()
async def limits_that_it_has_are_honoured_together(it: Subject) -> None:
    wanted = {key: value for name in _LIMITS.keys() & it.capabilities for key, value in _LIMITS[name].items()}
    async with it.sandbox(limits=Limits(**wanted)) as sandbox:
        require((await sandbox.exec("true")).ok, "a sandbox with limits runs nothing")


# --- states ---


@promise()
async def changes_name_what_was_added_changed_and_deleted(it: Subject) -> None:
    async with it.sandbox() as sandbox:
        equal(await sandbox.changes(), [], "changes of a fresh sandbox")
        commands = "mkdir /srv/new && echo 12345 > /srv/new/file && ln -s file /srv/new/link; echo x > /tmp/mine"
        done = await sandbox.exec(f"{commands}\n{_REMOVE_ONE}", user="root")
        require(done.ok, f"nothing can be changed: {done.stderr!r}")
        gone = done.stdout.decode().split()
        found = await changed(sandbox)
        expected = {
            "/srv/new": ("added", "directory"),
            "/srv/new/file": ("added", "file"),
            "/srv/new/link": ("added", "symlink"),
            "/tmp/mine": ("added", "file"),  # noqa: S108
        }
        kinds = {path: (change.kind, change.type) for path, change in found.items() if change.kind != "deleted"}
        equal(kinds, expected, "what was added")
        equal([path for path, change in found.items() if change.kind == "deleted"], gone, "deleted")
        equal((found["/srv/new/file"].size, found["/srv/new/link"].target), (6, "file"), "size and target")
        equal(list(found), sorted(found), "the order of changes")


@promise("fork")
async def a_fork_has_the_files_and_goes_its_own_way(it: Subject) -> None:
    shared = f"{it.spec.workdir}/shared"
    async with it.sandbox() as origin:
        await origin.exec("echo shared > shared")
        await origin.process(beating("/tmp/beat"))  # noqa: S108
        await until_beating(origin, "/tmp/beat")  # noqa: S108
        async with forked(origin) as fork:
            equal(await fork.read_file(shared), b"shared\n", "a file of the origin in its fork")
            require(not await beats(fork, "/tmp/beat"), "processes were copied")  # noqa: S108
            await fork.exec("echo fork > shared; echo x > only-here")
            await origin.exec("echo origin > shared")
            equal(await fork.read_file(shared), b"fork\n", "the fork's own file")
            equal(await origin.read_file(shared), b"origin\n", "the origin's own file")
            async with refused("a file of the fork in its origin", RuntimeFailure):
                await origin.read_file(f"{it.spec.workdir}/only-here")
            async with forked(fork) as grandchild:
                equal(await grandchild.read_file(shared), b"fork\n", "a file of a fork in its own fork")
        require((await origin.exec("true")).ok, "the origin did not outlive its fork")


@promise("fork")
async def a_fork_can_have_chosen_paths_as_they_were_built(it: Subject) -> None:
    told: list[Change] = []

    def revert(changes: Any) -> list[str]:
        told.extend(changes)
        return ["/srv"]

    async with it.sandbox() as origin:
        await origin.exec("mkdir -p /srv/new; echo x > /srv/new/x; ln -s /etc /srv/link", user="root")
        await origin.exec("echo mine > mine")
        async with forked(origin, revert=revert) as fork:
            equal(set(await changed(fork)), {f"{it.spec.workdir}/mine"}, "changes of the fork")
        equal(await origin.read_file("/srv/new/x"), b"x\n", "the origin's file")
    paths = {f"{it.spec.workdir}/mine", "/srv/new", "/srv/new/x", "/srv/link"}
    equal({change.path for change in told}, paths, "changes that `revert` was given")


@promise("fork", "forward")
async def a_fork_beside_uses_what_runs_and_is_not_reached_by_it(it: Subject) -> None:
    async with it.sandbox() as origin:
        await origin.exec("echo mine > mine")
        writer = await origin.process(beating("beat"))
        found = [tool for tool in _SERVERS if (await origin.exec(f"command -v {tool}")).ok]
        tool = found[0] if found else None
        if tool is not None:
            await _serve(origin, tool, 18181)
        beside = await origin.fork_beside()
        try:
            equal(await beside.read_file(f"{it.spec.workdir}/mine"), b"mine\n", "a file of the copy")
            require(not await beats(beside, f"{it.spec.workdir}/beat"), "a process runs in the copy")
            require(await beats(origin, f"{it.spec.workdir}/beat"), "a process of the origin has ended")
            if tool is not None:
                equal(await _greeting(beside, tool, 18181), b"hello", "the answer of a service beside the copy")
                await _serve(beside, tool, 18182)
                equal(await _greeting(origin, tool, 18182), b"", "the answer of a service in the copy")
        finally:
            await beside.stop()
            await writer.kill()


_PYTHON_SERVER: Final = """python3 -c "import socket
s = socket.create_server(('127.0.0.1', {port}))
open('{ready}', 'w').close()
while True:
    c, _ = s.accept()
    c.sendall(b'hello')
    c.close()" """
_PYTHON_CLIENT: Final = """python3 -c "import socket
print(socket.create_connection(('127.0.0.1', {port}), 5).recv(9).decode(), end='')" """
_NC_SERVER: Final = "touch {ready}; exec nc -ll -p {port} -e printf hello"
_SERVERS: Final = {
    "python3": (_PYTHON_SERVER, _PYTHON_CLIENT),
    "nc": (_NC_SERVER, "nc -w 5 127.0.0.1 {port} </dev/null"),
}
"""By the program that an environment may have: how it serves a greeting on a port, and how it asks for one."""


async def _serve(sandbox: Sandbox, tool: str, port: int) -> None:
    ready = f"/tmp/ready-{port}"  # noqa: S108 - in a sandbox
    command = f"({_SERVERS[tool][0].format(port=port, ready=ready)}) >/dev/null 2>&1 </dev/null &"
    await sandbox.exec(command)
    with anyio.fail_after(PATIENCE):
        while not (await sandbox.exec(f"test -f {ready}")).ok:  # noqa: ASYNC110 - the sandbox sets no event
            await anyio.sleep(PAUSE)
        await anyio.sleep(PAUSE)


async def _greeting(sandbox: Sandbox, tool: str, port: int) -> bytes:
    return (await sandbox.exec(_SERVERS[tool][1].format(port=port), timeout=PATIENCE)).stdout


@promise("mounts")
async def mounts_are_read_only_and_not_changes(it: Subject) -> None:
    (it.folder / "asset").write_text("asset\n")
    async with it.sandbox(mounts=(Mount(it.folder, "/assets/here"),)) as sandbox:
        equal((await sandbox.exec("cat /assets/here/asset")).stdout, b"asset\n", "a mounted file")
        require(not (await sandbox.exec("touch /assets/here/new", user="root")).ok, "a mount can be written")
        inside = [change.path for change in await sandbox.changes() if change.path.startswith("/assets/here/")]
        equal(inside, [], "changes below a mount")
    async with refused("a mount that does not exist"):
        await it.sandbox(mounts=(Mount(it.folder / "missing", "/x"),)).start()


@promise("mounts", "fork")
async def a_fork_can_mount_where_a_link_was_planted(it: Subject) -> None:
    (it.folder / "test.sh").write_text("real\n")
    async with it.sandbox() as origin:
        await origin.exec("mkdir /srv/evil; echo planted > /srv/evil/test.sh; ln -s /srv/evil /tests", user="root")
        async with forked(origin, mounts=[Mount(it.folder, "/tests")]) as fork:
            shown = await fork.exec("cat /tests/test.sh /srv/evil/test.sh; test -L /tests || echo plain")
            equal(shown.stdout, b"real\nplanted\nplain\n", "what is seen through the mount")


@promise("snapshot")
async def a_snapshot_outlives_its_sandbox_and_starts_many(it: Subject) -> None:
    kept = f"{it.spec.workdir}/kept"
    async with it.sandbox() as sandbox:
        await sandbox.exec("echo kept > kept")
        snapshot = await sandbox.snapshot()
        await sandbox.exec("echo later > kept")
    for _ in range(2):
        async with it.backend.create(it.spec, snapshot=snapshot) as restored:
            equal(await restored.read_file(kept), b"kept\n", "a file of the snapshot")
            equal(set(await changed(restored)), {kept}, "changes of a restored sandbox")
    await it.backend.discard(snapshot)
    async with refused("a snapshot that was discarded"):
        await it.backend.create(it.spec, snapshot=snapshot).start()


# --- life ---


@promise()
async def stopping_twice_is_fine_and_a_stopped_sandbox_says_so(it: Subject) -> None:
    sandbox = it.sandbox()
    await sandbox.start()
    await sandbox.stop()
    await sandbox.stop()
    async with refused("a command in a stopped sandbox", RuntimeFailure):
        await sandbox.exec("true")


@promise()
async def sandboxes_do_not_see_each_others_files(it: Subject) -> None:
    async with it.sandbox() as first, it.sandbox() as second:
        await first.write_file("/tmp/secret", b"1")  # noqa: S108
        async with refused("a file of another sandbox", RuntimeFailure):
            await second.read_file("/tmp/secret")  # noqa: S108


@promise("image")
async def an_unknown_image_says_which_one(it: Subject) -> None:
    try:
        await it.backend.resolve("benchcube-check/no-such-image:1")
    except EnvironmentFailure as error:
        require("no-such-image" in str(error), f"the image is not named: {error}")
        return
    raise BackendFault("an unknown image was found")


@promise()
async def the_network_changes_to_what_it_has_and_to_nothing_else(it: Subject) -> None:
    modes = [mode for mode in _MODES if f"network.{mode}" in it.capabilities]
    async with it.sandbox(network=NetworkPolicy(modes[0])) as sandbox:
        for mode in (*modes[1:], modes[0]):
            await sandbox.set_network(NetworkPolicy(mode, ("example.com",) if mode == "allowlist" else ()))
            require((await sandbox.exec("true")).ok, f"nothing runs after a change to {mode}")
        for mode in set(_MODES) - set(modes):
            async with refused(f"the network {mode}", UnsupportedError):
                await sandbox.set_network(NetworkPolicy(mode, ("example.com",)))
