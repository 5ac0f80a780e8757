"""Connects this process to an existing Ray cluster, or says in one sentence why that is not possible.

Nothing is started. The address is the one given, else `RAY_ADDRESS`, else that of the cluster on this machine.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn

from benchflow.errors import UsageError

AUTO: Final = "auto"
_PROBE_SEC: Final = 60.0
_DIAL_SEC: Final = 5.0
_WITHOUT: Final = "couldn't find an authentication token"


def connect(address: str | None = None) -> str:
    """The address of the cluster that this process is connected to now; a `UsageError` if it cannot be.

    A process that is connected already stays so.
    """
    _require_ray()
    import ray

    if ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    wanted = address or os.environ.get("RAY_ADDRESS") or AUTO
    if wanted.startswith("ray://"):
        _refuse(
            f"{wanted} is an address of Ray Client, which is not supported: join this machine to the cluster with "
            "`ray start --address=HOST:PORT --num-cpus=0`, and give that address.",
            "ray-client",
        )
    if wanted != AUTO:
        _require_listening(wanted)
    found = _probed(wanted)
    if "failure" in found:
        _explain(wanted, found)
    _require_versions(found, ray.__version__)
    place: str = found["address"]
    _attach(place)
    return place


def disconnect() -> None:
    """Leave the cluster; everything that this process started there ends."""
    import ray

    ray.shutdown()


def _require_ray() -> None:
    try:
        version("ray")
    except PackageNotFoundError:
        from cube.extras import extra_command

        _refuse(f"--engine ray needs the extra 'ray': {extra_command('ray')}", "extra-missing")


def _require_listening(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        _refuse(f"'{address}' is not an address of a Ray cluster, which is HOST:PORT.", "ray-address")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_DIAL_SEC).close()
    except (OSError, OverflowError) as error:
        _refuse(
            f"No Ray cluster answers at {address}: {getattr(error, 'strerror', None) or error}. Start one with "
            "`ray start --head`, or use another --ray-address.",
            "no-cluster",
        )


def _probed(address: str) -> dict[str, str]:
    command = [sys.executable, "-m", "benchflow.cluster.ray_probe", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SEC, check=False)
    except subprocess.TimeoutExpired:
        return {"failure": "closed", "message": f"It gave no answer within {_PROBE_SEC:g} s"}
    try:
        answer: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        kind = "token" if _WITHOUT in done.stderr else "closed"
        return {"failure": kind, "message": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
    return answer


def _explain(address: str, found: dict[str, str]) -> NoReturn:
    if found["failure"] == "token":
        _refuse(
            f"The Ray cluster at {address} refuses this process, whose token is missing or wrong: set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or the file ~/.ray/auth_token to the token of the cluster.",
            "ray-token",
        )
    if found["failure"] == "none":
        several = "multiple" in found["message"]
        what = "More than one Ray cluster runs" if several else "No Ray cluster runs"
        _refuse(
            f"{what} on this machine: {'choose' if several else 'name'} one with --ray-address HOST:PORT"
            f"{'' if several else ', or start one with `ray start --head`'}.",
            "no-cluster",
        )
    first = found["message"].splitlines()[0][:300] if found["message"] else "no answer"
    _refuse(f"What listens at {address} does not answer as a Ray cluster: {first.rstrip('.')}.", "no-cluster")


def _require_versions(found: dict[str, str], ray_version: str) -> None:
    """Ray compares them too, and lets a worker fail that has others."""
    theirs, ours = (found["ray"], found["python"]), (ray_version, platform.python_version())
    if theirs != ours:
        _refuse(
            f"The Ray cluster at {found['address']} has Ray {theirs[0]} on Python {theirs[1]}, and this process Ray "
            f"{ours[0]} on Python {ours[1]}: both must be the same.",
            "ray-version",
        )


def _attach(address: str) -> None:
    import ray
    from ray._private import worker
    from ray.job_config import JobConfig

    # What Ray wants to say goes to standard output, between the lines of a command; a lost node is reported by us.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    worker.print_to_stdstream = _say_nothing
    job: Any = JobConfig()
    job._py_driver_sys_path = _NoPaths()
    try:
        ray.init(address=address, job_config=job, namespace="benchcube", log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error.__cause__ or error)
        if "No node info found" in reason:
            reason = (
                f"This machine is not a node of the Ray cluster at {address}: join it first, without rollouts of its "
                f"own, with `ray start --address={address} --num-cpus=0`."
            )
        else:
            reason = f"Cannot connect to the Ray cluster at {address}: {reason.splitlines()[0].rstrip('.')}."
        _refuse(reason, "no-cluster")


def _say_nothing(*_arguments: object, **_options: object) -> None:
    """In the place of Ray's printer."""


class _NoPaths(list[str]):
    """The working directory of the driver is no place for nodes to import from: a file there named as a module would
    take its place."""

    def extend(self, _paths: object) -> None:
        """Nothing is added."""


def _refuse(message: str, code: str) -> NoReturn:
    raise UsageError(message, code=code)
