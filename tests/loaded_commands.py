"""`bench` as a process of its own, without loading the program each time: a server that has loaded it forks.

`bench(*arguments, cwd=..., env=...)` gives what `subprocess.run([*BENCH, *arguments], ...)` gives. The process that
runs a command has its own output, folder and environment, and ends as an interpreter ends; only its modules are there
already. What depends on how Python starts, on signals or on streams is run by `BENCH`.
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
    request = {"arguments": words, "cwd": str(cwd), "env": dict(os.environ if env is None else env), "load": load}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with theirs:
            given = [theirs.fileno(), output.fileno(), errors.fileno()]
            socket.send_fds(_server(), [json.dumps(request).encode()], given)
        ours.settimeout(timeout)
        pid = int(ours.recv(16))
        try:
            code = int(ours.recv(16))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["bench", *words], timeout) from None
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["bench", *words], code, *texts)


def serve(requests: socket.socket) -> None:
    """Fork for every request until nobody is left to ask."""
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
    sys.argv = ["bench", *request["arguments"]]
    sys.exit(main(request["arguments"]))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
