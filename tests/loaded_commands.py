"""`bench` as a process of its own, without loading the program each time: a server that has loaded it forks.

`bench(*arguments, cwd=..., env=...)` gives what `subprocess.run([*BENCH, *arguments], ...)` gives, and `Running` is a
command that has not ended. Its process has its own output, folder and environment, and ends as an interpreter ends;
only its modules are there already. What depends on how Python starts, on signals or on streams is run by `BENCH`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

BENCH: Final = (sys.executable, "-c", "import sys; from benchflow.cli import main; sys.exit(main())")
"""The command, loaded anew."""
LOADED: Final = (
    *("benchflow.cli.run", "benchflow.cli.eval", "benchflow.cli.tasks.check", "benchflow.rollout.rollout"),
    *("benchflow.evaluation.job", "benchflow.evaluation.packages", "benchflow.sandbox.local.local_backend"),
    *("benchflow.agents.oracle_agent", "benchflow.verifier.strategies.script", "anyio._backends._asyncio"),
)
_LARGEST_REQUEST: Final = 1 << 17


@cache
def _server() -> socket.socket:
    """The way to the server of this process, which is started on first use and ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )

    def end() -> None:
        ours.close()
        server.wait(30)

    atexit.register(end)
    return ours


def bench(
    *arguments: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 240,
    load: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `bench` to its end; `load` names more modules that the server loads, once."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        running = Running(words, cwd, os.environ if env is None else env, (output.fileno(), errors.fileno()), load)
        try:
            code = running.wait(timeout)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["bench", *words], code, *texts)


class Running:
    """A command that runs; its output goes to two descriptors."""

    def __init__(
        self, words: list[str], cwd: Path, env: Mapping[str, str], given: tuple[int, int], load: Sequence[str] = ()
    ) -> None:
        request = {"arguments": words, "cwd": str(cwd), "env": dict(env), "load": load}
        self._words = words
        self._code: int | None = None
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server(), [json.dumps(request).encode()], [theirs.fileno(), *given])
        self.pid = int(self._end.recv(16))

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has ended."""
        if self._code is None:
            self._end.settimeout(timeout)
            try:
                self._code = int(self._end.recv(16))
            except TimeoutError:
                raise subprocess.TimeoutExpired(["bench", *self._words], timeout) from None
            self._end.close()
        return self._code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, if it has not ended yet."""
        if self._code is None:
            with suppress(ProcessLookupError):
                self.send_signal(signal.SIGKILL)
            self.wait(30)


def serve(requests: socket.socket) -> None:
    """Fork for every request until nobody is left to ask."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks a server, and waits for it
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that watch a command are nobody's concern
    while True:
        text, given, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
        if not text:
            return
        request = json.loads(text)
        for name in request["load"]:
            importlib.import_module(name)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watch(request, *given)
        for descriptor in given:
            os.close(descriptor)


def _watch(request: dict[str, Any], reply: int, output: int, errors: int) -> NoReturn:
    """Report the id and then the end of a process that runs the command."""
    pid = os.fork()
    if pid == 0:
        os.close(reply)
        _become(request, output, errors)
    os.close(output)
    os.close(errors)
    os.write(reply, str(pid).encode())
    _, status = os.waitpid(pid, 0)
    os.write(reply, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, Any], output: int, errors: int) -> NoReturn:
    from benchflow.cli import main

    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["bench", *request["arguments"]]
    sys.exit(main(request["arguments"]))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
