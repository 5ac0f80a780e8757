"""Who commands of a sandbox run as, and which folders that user needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchflow.errors import SandboxFailure
from benchflow.sandbox.engine.accounts import AGENT_HOME, UNNAMED_AGENT, default_user, numeric_owner
from benchflow.sandbox.engine.container import EngineContainer
from benchflow.sandbox.engine.transfer import Owner


@dataclass(frozen=True, slots=True)
class Home:
    """The user of an image for one working folder."""

    user: str
    owner: Owner
    env: Mapping[str, str] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    """Folders that the image does not have."""


async def find_home(container: EngineContainer, asked: str | None, workdir: str) -> Home:
    """Look into a container that nobody has used yet. `asked` is what the package or the image says."""
    passwd = await _text(container, "/etc/passwd")
    user = asked or default_user(passwd)
    folders = [workdir]
    env: dict[str, str] = {}
    if user == UNNAMED_AGENT:
        env["HOME"] = AGENT_HOME
        folders.append(AGENT_HOME)
    lacking = tuple(record.path for record in await container.stat(folders) if record.type != "d")
    group = await _text(container, "/etc/group") if ":" in user else ""
    return Home(user, numeric_owner(user, passwd, group), env, lacking)


async def _text(container: EngineContainer, path: str) -> str:
    try:
        return (await container.read_file(path)).decode(errors="replace")
    except SandboxFailure:
        return ""
