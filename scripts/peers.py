"""Environments for other projects from PyPI, each with its own Python; created once, in the user's cache folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benchcube" / "peers"

HARBOR_LOADER = ("harbor==0.24.0", "pydantic", "toml")
"""Harbor's loader needs no more than these; the whole of Harbor would take minutes to install."""
OPENENV = ("openenv==0.10.0",)
NEMO_GYM = (
    "nemo-gym==0.4.0", "aiohttp", "devtools", "fastapi", "gprof2dot", "hydra-core", "itsdangerous", "omegaconf",
    "openai==2.7.2", "orjson", "pandas", "psutil", "pydot", "ray[default]>=2.55.1", "requests", "rich", "tqdm",
    "uvicorn", "wandb", "yappi",
)  # fmt: skip
"""What its agents and its collection of rollouts import; the rest is MLflow, datasets and Git."""
MODEL_SDKS = ("anthropic==2.8.0", "google-genai==3.1.0", "openai==3.49.0")
"""The clients of model providers, in one environment."""
SSH_SERVER = ("asyncssh==2.22.0",)
_LOAD = """
import json, sys
from harbor.models.task.task import Task
answers = {}
for path in json.load(sys.stdin):
    try:
        Task(path)
        answers[path] = None if Task.is_valid_dir(path) else "not a valid folder"
    except Exception as error:
        answers[path] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""


class PeerUnavailable(Exception):
    """There is no interpreter that the peer supports."""


def peer_environment(requirement: str, *others: str, dependencies: bool = True, python: str | None = None) -> Path:
    """The `bin` folder of the peer's own environment. Without `dependencies`, only `others` are installed beside it.

    `python` is the interpreter, for peers that some newer one does not have.
    """
    home = CACHE / (requirement.replace("==", "-") + ("" if dependencies else "-alone"))
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may want the same one
        if not (home / ".ready").exists():
            _create(home, requirement, others, dependencies=dependencies, python=python or newer_python())
    return home / "bin"


def harbor_answers(folders: Sequence[Path | str]) -> dict[str, str | None]:
    """What Harbor's own loader says of each folder: None, or why it refuses it."""
    if not folders:
        return {}
    python = peer_environment(*HARBOR_LOADER, dependencies=False) / "python"
    asked = json.dumps([str(folder) for folder in folders])
    done = subprocess.run([python, "-c", _LOAD], check=True, input=asked, stdout=subprocess.PIPE, text=True)
    answers: dict[str, str | None] = json.loads(done.stdout)
    return answers


def _create(home: Path, requirement: str, others: tuple[str, ...], *, dependencies: bool, python: str) -> None:
    shutil.rmtree(home, ignore_errors=True)
    print(f"Installing {requirement} into {home}", file=sys.stderr)
    subprocess.run([python, "-m", "venv", "--without-pip", str(home)], check=True)
    _install(home, requirement, *(() if dependencies else ("--no-deps",)))
    if others:
        _install(home, *others)
    (home / ".ready").touch()


def _install(home: Path, *arguments: str) -> None:
    """By uv, which takes seconds where pip takes minutes; by pip, which alone takes some to set up, where uv fails."""
    python = str(home / "bin" / "python")
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        command = [str(uv), "pip", "install", "--quiet", "--python", python, *arguments]
        if subprocess.run(command, check=False).returncode == 0:
            return
    subprocess.run([python, "-m", "ensurepip", "--default-pip"], check=True, stdout=subprocess.DEVNULL)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def newer_python() -> str:
    """A Python that the peers support: this one, one on PATH, or one that pyenv installed."""
    if sys.version_info >= (3, 12):
        return sys.executable
    for candidate in _candidates():
        code = "import sys, ensurepip; sys.exit(sys.version_info < (3, 12))"
        if subprocess.run([candidate, "-c", code], capture_output=True, check=False).returncode == 0:
            return candidate
    raise PeerUnavailable("the peer needs Python 3.12 or newer")


def _candidates() -> Iterator[str]:
    yield from (found for minor in range(12, 20) if (found := shutil.which(f"python3.{minor}")))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from (str(path) for path in sorted(pyenv.glob("versions/3.1[2-9]*/bin/python3")))
