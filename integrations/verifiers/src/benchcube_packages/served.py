"""The server of a process: one that was named, or one that is started for a folder and ends with the process."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from benchflow.trainers.client import Client

TOKEN_VARIABLE = "BENCHCUBE_TOKEN"  # the name of a variable, not a secret


@cache
def client_of(url: str) -> Client:
    """The client of this process for a server. Its token is in a variable, and in no config or trace."""
    return Client(url, token=os.environ.get(_own_variable(url), os.environ.get(TOKEN_VARIABLE)) or None)


def _own_variable(url: str) -> str:
    """Where the token of a server is that was started here: beside it, others may be used, started or named."""
    return f"{TOKEN_VARIABLE}_{urlsplit(url).port}"


@cache
def served(root: Path, bench: str, sandbox: str, base_image: str | None) -> str:
    """The address of a server for the packages below `root`, started once for this process."""
    command = [bench, "serve", "ors", str(root), "--sandbox", sandbox, "--json"]
    command += ["--base-image", base_image] if base_image is not None else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    atexit.register(_end, process)
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise RuntimeError(f"`{' '.join(command)}` exited with code {process.wait()}.")
    address = json.loads(line)
    os.environ[_own_variable(address["url"])] = address["token"] or ""  # the tool servers of rollouts inherit it
    return str(address["url"])


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def package_folders(root: Path, bench: str) -> dict[str, str]:
    """Where packages are, by their content digest."""
    command = [bench, "tasks", "check", str(root), "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    return {task["content_digest"]: task["path"] for task in told["tasks"]}


def oracle_reward(folder: str, bench: str, sandbox: str, base_image: str | None, out: Path) -> float | None:
    """The reward of a package's own oracle; None if it has no score."""
    command = [bench, "run", folder, "--agent", "oracle", "--sandbox", sandbox, "--out", str(out), "--json"]
    command += ["--base-image", base_image] if base_image is not None else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr.strip() or f"`bench run` exited with code {done.returncode}.")
    reward = json.loads(done.stdout)["reward"]
    return None if reward is None else float(reward)
