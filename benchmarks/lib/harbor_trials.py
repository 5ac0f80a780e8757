"""Oracle trials of a package by Harbor, a peer of our rollouts, on Docker.

The engine is the machine's if it is running, otherwise one started for the run. No registry is used: the image contains
the busybox and the bash of this machine, and the package is exported to Harbor's layout with that image.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchflow.task.interop.split_export import export_task_to_split_layout
from lib.side_by_side import peer_environment, run_json

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from engines import Engines, EngineUnavailable, base_rootfs

HARBOR = "harbor==0.24.0"
IMAGE = "benchcube-benchmark/bash:1"
JOBS = """
import asyncio, json, sys, time
from pathlib import Path
from harbor.job import Job
from harbor.models.job.config import JobConfig
task, jobs, trials, concurrency = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
async def seconds(name, attempts):
    job = await Job.create(JobConfig.model_validate({
        "job_name": name, "jobs_dir": jobs, "n_attempts": attempts, "n_concurrent_trials": concurrency, "quiet": True,
        "environment": {"type": "docker"}, "agents": [{"name": "oracle"}], "tasks": [{"path": task}],
    }))
    began = time.perf_counter()
    await job.run()
    spent = time.perf_counter() - began
    trials = [json.loads(path.read_text()) for path in (jobs / name).glob("*/result.json")]
    rewards = [(trial["verifier_result"] or {}).get("rewards") for trial in trials]
    assert rewards == [{"reward": 1}] * attempts, (rewards, [trial["exception_info"] for trial in trials])
    return spent
async def main():
    await seconds("warm-up", 1)
    return trials / await seconds("measured", trials)
print(json.dumps({"rate": asyncio.run(main())}))
"""


class PeerUnavailable(Exception):
    """Harbor cannot run on this machine; the message is the reason."""


def harbor_rate(package: Path, scratch: Path, *, trials: int, concurrency: int) -> float:
    """Trials per second of a package's oracle, from the start of a job to its end; raises `PeerUnavailable`."""
    if shutil.which("docker") is None:
        raise PeerUnavailable("docker is not installed")
    with docker_engine() as env:
        attempt(["docker", "compose", "version"], env)
        python = harbor_python()
        attempt(["docker", "import", "--change", "WORKDIR /app", "-", IMAGE], env, data=image_with_bash())
        try:
            split = scratch / "split"
            export_task_to_split_layout(package, split)
            measured = run_json(python, JOBS, split, scratch / "harbor", str(trials), str(concurrency), env=env)
        except subprocess.CalledProcessError as error:
            raise PeerUnavailable(f"its trials failed with exit code {error.returncode}") from None
        finally:
            subprocess.run(["docker", "rmi", "-f", IMAGE], env=env, capture_output=True, check=False)
    return float(measured["rate"])


def harbor_python() -> Path:
    try:
        return peer_environment(HARBOR) / "python"
    except SystemExit as error:
        raise PeerUnavailable(str(error)) from None
    except subprocess.CalledProcessError:
        raise PeerUnavailable(f"{HARBOR} cannot be installed") from None


@contextmanager
def docker_engine() -> Iterator[Mapping[str, str]]:
    """The environment that reaches a Docker engine: the machine's, or one that runs during the block."""
    env = {**os.environ, "HARBOR_TELEMETRY": "off"}
    if subprocess.run(["docker", "info"], env=env, capture_output=True, check=False).returncode == 0:
        yield env
        return
    with tempfile.TemporaryDirectory(prefix="benchcube-engines-", ignore_cleanup_errors=True) as folder:
        try:
            engines = Engines(Path(folder))
        except EngineUnavailable as error:
            raise PeerUnavailable(str(error)) from None
        try:
            yield {**env, **engines.docker()}
        except EngineUnavailable as error:
            raise PeerUnavailable(str(error)) from None
        finally:
            engines.stop()


def attempt(words: list[str], env: Mapping[str, str], *, data: bytes | None = None) -> None:
    done = subprocess.run(words, env=env, input=data, capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise PeerUnavailable(f"`{' '.join(words[:2])}` failed: {said[0] if said else done.returncode}")


def image_with_bash() -> bytes:
    """A root file system with busybox, bash and its libraries."""
    bash = shutil.which("bash")
    if bash is None:
        raise PeerUnavailable("bash is not installed")
    linked = subprocess.run(["ldd", bash], capture_output=True, check=False, text=True).stdout.split()
    archive = io.BytesIO(base_rootfs())
    with tarfile.open(fileobj=archive, mode="a", dereference=True) as tar:
        tar.add(bash, "bin/bash")
        for library in linked:
            if library.startswith("/"):
                tar.add(library, library[1:])
    return archive.getvalue()
