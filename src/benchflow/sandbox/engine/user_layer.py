"""The user of a sandbox, with a working folder and a home; what an image lacks of it is added once, as a layer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.box.container_arguments import Launch
from benchflow.sandbox.engine.box.record_transfer import Owner
from benchflow.sandbox.engine.box.running_container import EngineContainer, numeric_owner
from benchflow.sandbox.engine.container_changes import parse_diff
from benchflow.sandbox.inside.accounts import AGENT, GIT_SETTINGS, find_account, with_account, with_trust

if TYPE_CHECKING:
    from benchflow.sandbox.engine.machine.engine_host import EngineHost


@dataclass(frozen=True, slots=True)
class Home:
    """The user of an image for one working folder, and the image that contains both."""

    user: str
    image: str


async def prepare_home(host: EngineHost, image: str, asked: str | None, workdir: str) -> Home:
    """Find out who commands run as, `agent` unless the package or the image asks for somebody else, and see to it that
    this user exists and may write in the working folder."""
    user = asked or AGENT
    name = f"benchcube-{secrets.token_hex(8)}"
    launch = Launch(image=image, name=name, network="none", purpose="sandbox")
    arguments = host.run_arguments(launch)
    done = await host.client.run(*arguments)
    if done.exit_code != 0:
        raise host.client.refusal("run", done)
    try:
        container = EngineContainer(host.client, name, user="0:0", workdir="/", env={}, restart=_lost)
        await _settle(container, user, workdir)
        home = Home(user, image)
        if parse_diff(await container.diff()):
            home = replace(home, image=await host.commit(name, "prepared", name=name))
        return home
    finally:
        with anyio.CancelScope(shield=True):
            await host.remove_container(name)


async def _settle(container: EngineContainer, user: str, workdir: str) -> None:
    known = [await _text(container, path) for path in ("/etc/passwd", "/etc/group")]
    passwd, group = known
    if user == AGENT:
        passwd, group = with_account(AGENT, *with_account("root", passwd, group))
        for path, text, before in zip(("/etc/passwd", "/etc/group"), (passwd, group), known, strict=True):
            if text != before:
                await container.write_file(path, text.encode("utf-8", "surrogateescape"))
    owner = numeric_owner(user, passwd, group)
    home = find_account(user, passwd, group).home if user == AGENT else "/"
    folders = [folder for folder in dict.fromkeys((workdir, home)) if folder.startswith("/") and folder != "/"]
    await container.make_folders(folders, owner)
    if owner.uid == 0:
        return
    for folder in folders:
        await container.give(folder, owner)
    settings = await _text(container, GIT_SETTINGS)
    if with_trust(settings) != settings:
        await container.write_file(GIT_SETTINGS, with_trust(settings).encode("utf-8", "surrogateescape"))


async def make_workdir(container: EngineContainer, workdir: str) -> Sequence[str]:
    """Make root's working folder in a running container; gives the paths that were not there before."""
    if (await container.stat([workdir]))[0].type == "d":
        return ()
    before = parse_diff(await container.diff())
    await container.make_folders([workdir], Owner())
    return [path for path in parse_diff(await container.diff()) if path not in before]


async def _text(container: EngineContainer, path: str) -> str:
    try:
        return (await container.read_file(path)).decode("utf-8", "surrogateescape")
    except SandboxFailure as error:
        if error.code != "no-such-file":
            raise
        return ""


async def _lost() -> None:
    raise SandboxFailure("The user and working folder of the environment could not be created.", code="sandbox-failed")
