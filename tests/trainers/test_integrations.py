"""Installables for other frameworks: each is built, put beside its framework in its own environment, tested there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from peers import PeerUnavailable, peer_environment

from episode_server import plugins, serving, write_package

ROOT = Path(__file__).parents[2]
INTEGRATIONS = ROOT / "integrations"
CPU_TORCH = "torch==2.13.0+cpu"
"""A build of torch for the CPU; without it an environment for TRL takes gigabytes."""
TRAINING = ("trl==1.16.0", "openreward>=0.1.160", "httpx", "jmespath")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("integrations")]


def uv() -> str:
    found = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    assert found is not None, "uv builds the installables: pip install uv"
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Packages in memory, and where they are."""
    tmp = tmp_path_factory.mktemp("integrations")
    write_package(tmp / "set" / "plain", "set/plain")
    write_package(tmp / "set" / "train", "set/train", front="metadata: {split: train}\n")
    write_package(tmp / "set" / "crash", "set/crash", tests="#!/bin/sh\nexit 3\n")
    with serving(tmp, tmp / "set", "--sandbox", "memory", no_token=False) as server:
        yield server, tmp


def run_tests(name, python, served, tmp_path, *files):
    """The tests of an installable with another interpreter, after it was built and installed beside that."""
    server, tmp = served
    target = tmp_path / "installed"
    install = [uv(), "pip", "install", "--quiet", "--no-deps", "--target", target, ROOT, INTEGRATIONS / name]
    done = subprocess.run(install, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (target, plugins(tmp / "plugins")))),
        "SERVED_URL": server.url,
        "SERVED_TOKEN": server.address["token"],
        "BENCHCUBE_TOKEN": server.address["token"],
        "SERVED_ROOT": str(tmp / "set"),
        "SERVED_MANY": str(tmp / "many"),
        "SERVED_BENCH": str(Path(sys.executable).with_name("bench")),
        "SERVED_SANDBOX": "memory",
        "LOG_DIR": str(tmp_path / "logs"),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    for file in files:
        command = [python, "-W", "ignore", INTEGRATIONS / name / "tests" / file]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=env, cwd=tmp_path)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-6000:]


def environment(*requirements, **settings):
    try:
        return peer_environment(*requirements, **settings) / "python"
    except PeerUnavailable as error:
        pytest.skip(str(error))


def test_a_taskset_of_verifiers(served, tmp_path):
    for number in range(100):
        folder = served[1] / "many" / f"task-{number:03}"
        split = "metadata: {split: train}\n" if number % 4 == 0 else ""
        write_package(
            folder, f"many/task-{number:03}", front=split, prompt=f"Write done to /app/answer.txt ({number})."
        )
    run_tests("verifiers", environment("verifiers==0.4.0"), served, tmp_path, "test_taskset.py")


def test_a_task_of_inspect(served, tmp_path):
    run_tests("inspect", environment("inspect-ai==0.3.285"), served, tmp_path, "test_task.py")


def test_an_environment_of_trl_driven_by_hand(served, tmp_path):
    run_tests("trl", sys.executable, served, tmp_path, "test_environment.py")


def test_a_step_of_grpo_with_trl(served, tmp_path):
    try:
        python = environment(CPU_TORCH, *TRAINING, python=sys.executable)
    except subprocess.CalledProcessError:
        pytest.skip(f"{CPU_TORCH} cannot be installed here; an environment with CUDA would take gigabytes")
    run_tests("trl", python, served, tmp_path, "test_training.py")


@pytest.mark.parametrize("name", ["trl", "verifiers", "inspect"])
def test_the_framework_and_the_core_fit_into_one_environment(name):
    command = [uv(), "pip", "compile", "--quiet", "--python-version", "3.12", "-"]
    asked = f"benchcube @ {ROOT.as_uri()}\nbenchcube-{name} @ {(INTEGRATIONS / name).as_uri()}\n"
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
