"""Packages that servers offer, one folder of them for all tests of a module."""

import pytest

from episode_server import serving, write_package


@pytest.fixture(scope="module")
def module_tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def packages(module_tmp):
    """A folder of packages: one of the plain kind, and some with a peculiarity each."""
    root = module_tmp / "set"
    write_package(root / "plain", "set/plain")
    write_package(root / "train", "set/train", front="metadata: {split: train}\n")
    write_package(root / "dense", "set/dense", front="metadata: {step_rewards: true}\n")
    write_package(root / "crash", "set/crash", tests="#!/bin/sh\nexit 3\n")
    (root / "broken").mkdir()
    (root / "broken/task.md").write_text("---\ntask: {name: set/broken}\nagent: {tmieout_sec: 3}\n---\nDo it.\n")
    return root


@pytest.fixture(scope="module")
def server(module_tmp, packages):
    """Packages in memory and a cube; tests of a module share it."""
    with serving(module_tmp, packages, "cube:counter-cube", "--sandbox", "memory", "--reap-after", "600") as running:
        yield running
