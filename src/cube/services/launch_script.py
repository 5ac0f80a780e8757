"""Launch scripts: bash that starts containers with `docker` and waits until they serve.

With an engine, every container of a script gets the label `cube.launch=RUN_ID`, so that it is found again even after
the process that ran the script was killed. Without one, `docker` is a stand-in that starts sandboxes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cube import leash
from cube.container import ContainerError, ContainerLaunchError
from cube.services import docker_ask
from cube.services.docker_stand_in import DockerStandIn
from cube.services.service_container import LocalContainers

LABEL: Final = "cube.launch"
SCRIPT_SEC: Final = 1800.0
_TAIL: Final = 2000
_ENGINE_SEC: Final = 120
_LABELLING: Final = """#!/bin/sh
case "$1" in
  run|create) verb=$1; shift; exec {engine} "$verb" --label {label} "$@" ;;
  container) case "$2" in
    run|create) verb=$2; shift 2; exec {engine} "$verb" --label {label} "$@" ;;
  esac ;;
esac
exec {engine} "$@"
"""


def start_in_sandboxes(script: str, run_id: str, containers: LocalContainers) -> DockerStandIn:
    """Run a script whose `docker` starts sandboxes; after an error none of them runs."""
    stand_in = DockerStandIn(containers)
    try:
        with _folder() as folder:
            address = folder / "socket"
            stand_in.listen(address)
            ask = shlex.join([sys.executable, "-I", docker_ask.__file__, str(address)])
            _program(folder / "docker", f'#!/bin/sh\nexec {ask} "$@"\n')
            try:
                _run(script, run_id, folder)
            except ContainerLaunchError as error:
                raise ContainerLaunchError(_explained(str(error), stand_in)) from error
            finally:
                stand_in.deafen()
            if (died := stand_in.died()) is not None:
                raise ContainerLaunchError(died)
    except BaseException:
        stand_in.close()
        raise
    return stand_in


def start_in_engine(script: str, run_id: str, engine: str) -> None:
    """Run a script whose `docker` is an engine; after an error its containers are removed."""
    program = shutil.which(engine)
    if program is None:
        raise ContainerLaunchError(f"The command `{engine}` is not installed.")
    try:
        with _folder() as folder:
            words = {"engine": shlex.quote(program), "label": shlex.quote(f"{LABEL}={run_id}")}
            _program(folder / "docker", _LABELLING.format(**words))
            _run(script, run_id, folder)
    except BaseException:
        remove_from_engine(run_id, engine)
        raise


def remove_from_engine(run_id: str, engine: str) -> None:
    """Remove all containers of a run; does nothing if there are none. A failure is a `ContainerError`."""
    listed = _engine(engine, "ps", "-aq", "--filter", f"label={LABEL}={run_id}")
    if ids := listed.split():
        _engine(engine, "rm", "-f", *ids)


def unreachable(services: Mapping[str, int]) -> list[str]:
    """The services whose port nobody listens on."""
    return [name for name, port in services.items() if not _listens(port)]


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("localhost", port), timeout=5):
            return True
    except OSError:
        return False


def _explained(message: str, stand_in: DockerStandIn) -> str:
    refusals = " ".join(dict.fromkeys(stand_in.refusals))
    if refusals:
        hint = "Run it with a container engine: LocalInfraConfig(sandbox='docker')."
        return f"{message} Refused: {refusals} {hint}"
    died = stand_in.died()
    return f"{message} {died}." if died is not None else message


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cube-launch-") as name:
        yield Path(name)


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _run(script: str, run_id: str, folder: Path) -> None:
    """Run the script to its end with the `docker` of a folder; a failure is a `ContainerLaunchError`."""
    file, log = folder / "launch.sh", folder / "log"
    file.write_text(script, encoding="utf-8")
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "CUBE_LAUNCH_ID": run_id}
    words = ["bash", str(file)]
    with log.open("wb") as output:
        process = leash.start(
            words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(SCRIPT_SEC)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code == 0:
        return
    said = log.read_text(encoding="utf-8", errors="replace").strip()[-_TAIL:]
    how = f"exited with code {code}" if code is not None else f"exceeded its limit of {SCRIPT_SEC:g} s"
    raise ContainerLaunchError(f"The launch script {how}.{f' Last output: {said}' if said else ''}")


def _engine(engine: str, *words: str) -> str:
    program = shutil.which(engine)
    if program is None:
        raise ContainerError(f"The command `{engine}` is not installed.")
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=_ENGINE_SEC, check=False)
    except subprocess.TimeoutExpired:
        raise ContainerError(f"`{engine} {words[0]}` exceeded its limit of {_ENGINE_SEC} s.") from None
    if done.returncode:
        raise ContainerError(f"`{engine} {words[0]}` failed: {done.stderr.strip()[-_TAIL:]}")
    return done.stdout
