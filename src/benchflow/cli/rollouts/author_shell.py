"""`bench tasks shell`: an author's shell in the environment of a package, as an agent finds it.

On a terminal the shell has a pseudo-terminal of its own inside the sandbox, made by a program of the environment
(`script` or Python); keys and output are passed on as they are. Otherwise the commands come from standard input.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from benchflow.cli.arguments import package_path
from benchflow.cli.machine_settings import machine_settings_option
from benchflow.cli.pull_lines import PullLines, pull_option
from benchflow.cli.terminal import is_terminal, note, printable

if TYPE_CHECKING:
    from pathlib import Path

    from benchflow.environment import Environment
    from benchflow.sandbox.protocol import Sandbox, SandboxProcess
    from benchflow.task.package import TaskPackage

_ASK_SEC: Final = 60.0
_TTY: Final = "/tmp/.bench-shell-tty"  # noqa: S108 - inside the sandbox, which ends with the shell
_FIND: Final = """
for name in bash sh; do command -v $name && break; done
if command -v script >/dev/null && script --version 2>/dev/null | grep -q util-linux; then echo script
elif command -v python3 >/dev/null; then echo python3
else echo none; fi
"""


@click.command()
@package_path
@click.option(
    "--sandbox", default="auto", show_default=True, metavar="NAME", help="Sandbox to use; see `bench sandboxes`."
)
@click.option("--base-image", metavar="host|NAME", help="Substitute for a base image that is not available.")
@click.option("--user", metavar="NAME", help="User of the shell; default: the agent's.")
@pull_option
@machine_settings_option
def shell(path: Path, sandbox: str, base_image: str | None, user: str | None, pull: str) -> int:
    """Open a shell in the environment of a package, in the agent's working folder and with its network policy.

    The environment contains neither the verifier nor the oracle. Changes are discarded when the shell exits. Exits
    with the exit code of the shell.
    """
    import anyio

    from benchflow.cli.tasks.selection import one_package
    from benchflow.errors import IssuesError
    from benchflow.task.package import load_package

    package = load_package(one_package(path).path)
    IssuesError.require(package if package.valid else None, package.issues)
    return anyio.run(_shell, package, sandbox, base_image, user, pull)


async def _shell(package: TaskPackage, sandbox: str, base_image: str | None, user: str | None, pull: str) -> int:
    from benchflow.environment import Environment
    from benchflow.sandbox.pulling import PullSettings, pull_policy

    settings = PullSettings(pull_policy(pull), on_progress=PullLines().show, ask_again_sec=None)
    note(printable(f"Starting the environment of {package.name} …"))
    environment = await Environment.from_task(package, sandbox=sandbox, base_image=base_image, pull=settings)
    async with environment:
        declared = package.view.config.agent.user
        who = user or (str(declared) if declared is not None else None)
        if is_terminal(sys.stdin) and is_terminal(sys.stdout):
            return await _interactive(environment, who)
        return await _piped(environment.sandbox, who)


async def _interactive(environment: Environment, user: str | None) -> int:
    sandbox = environment.sandbox
    found = await sandbox.exec(_FIND, user=user, timeout=_ASK_SEC)
    words = found.stdout.decode(errors="replace").split() if found.ok else []
    shell, maker = (words[0], words[1]) if len(words) == 2 else ("/bin/sh", "none")
    base = environment.record().base
    on = "" if base is None else f" on {base}"
    note(printable(f"Shell in a {environment.backend.name} sandbox{on}; it is removed when you exit."))
    if maker == "none":
        note("The environment has neither `script` nor Python, so the shell has no terminal.")
        return await _piped(sandbox, user, shell)
    term = {"TERM": os.environ.get("TERM", "xterm")}
    process = await sandbox.process(_on_terminal(shell, maker), user=user, env=term)
    with _raw_terminal():
        return await _connected(sandbox, process, user)


def _on_terminal(shell: str, maker: str) -> list[str]:
    """The command that runs a shell on a new terminal, with the size of ours."""
    size = shutil.get_terminal_size()
    begin = f"stty sane rows {size.lines} cols {size.columns}; tty > {_TTY}; exec {shlex.quote(shell)} -i"
    if maker == "script":
        return ["script", "-qfec", begin, "/dev/null"]
    program = "import os,pty,sys;sys.exit(os.waitstatus_to_exitcode(pty.spawn(['/bin/sh','-c',sys.argv[1]])))"
    return ["python3", "-c", program, begin]


async def _connected(sandbox: Sandbox, process: SandboxProcess, user: str | None) -> int:
    """Pass keys and output on until the shell ends; a new size of the window too."""
    import anyio

    async def sizes() -> None:
        with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
            async for _ in changes:
                size = shutil.get_terminal_size()
                command = f'stty -F "$(cat {_TTY})" rows {size.lines} cols {size.columns}'
                await sandbox.exec(command, user=user, timeout=_ASK_SEC)

    async with anyio.create_task_group() as group:
        group.start_soon(_pass_on_input, process)
        group.start_soon(sizes)
        async for chunk in process.stdout():
            _write(chunk)
        code = await process.wait()
        group.cancel_scope.cancel()
    return code


async def _piped(sandbox: Sandbox, user: str | None, shell: str = "/bin/sh") -> int:
    """Run the commands of standard input; a terminal sends them line by line."""
    import anyio

    process = await sandbox.process([shell], user=user)

    async def errors() -> None:
        async for chunk in process.stderr():
            sys.stderr.buffer.write(chunk)
            sys.stderr.flush()

    async with anyio.create_task_group() as group:
        group.start_soon(_pass_on_input, process)
        group.start_soon(errors)
        async for chunk in process.stdout():
            _write(chunk)
        code = await process.wait()
        group.cancel_scope.cancel()
    return code


async def _pass_on_input(process: SandboxProcess) -> None:
    """Send standard input to a process until it ends. No thread is left waiting for a key if the process ends first."""
    import anyio

    descriptor = sys.stdin.fileno()
    waits = True
    while True:
        if waits:
            try:
                await anyio.wait_readable(descriptor)
            except PermissionError:  # a file, which can always be read
                waits = False
        data = _read(descriptor)
        if not data:
            await process.close_stdin()
            return
        await process.send(data)


def _read(descriptor: int) -> bytes:
    """What was typed or piped; nothing at the end, also if the terminal was closed."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def _write(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.flush()


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes to the shell, Ctrl-C too; afterwards the terminal is as it was."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
