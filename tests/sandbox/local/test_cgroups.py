"""Where control groups are made and what is written there, on folders that look like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.sandbox.local import cgroups
from benchflow.sandbox.protocol import Limits


def machine(tmp_path: Path, mounts: list[str], own: str) -> Path:
    """A `/proc` with this mount table and these groups of ours."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text("\n".join(mounts) + "\n")
    (proc / "self/cgroup").write_text(own)
    return proc


def version_2(folder: Path, controllers: str, acting: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("")
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(acting)


def test_version_1_groups_are_made_below_our_own(tmp_path: Path) -> None:
    for name in ("memory", "pids"):
        (tmp_path / name / "job").mkdir(parents=True)
    mounts = [
        f"30 25 0:26 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
        f"31 25 0:27 / {tmp_path}/pids rw - cgroup cgroup rw,pids",
        f"32 25 0:28 / {tmp_path}/blkio rw - cgroup cgroup rw,blkio",
    ]
    proc = machine(tmp_path, mounts, "4:memory:/job\n8:pids:/job\n7:blkio:/\n")
    found = cgroups.find_hierarchies(proc)
    assert {(item.folder, item.controllers, item.version) for item in found} == {
        (tmp_path / "memory/job", frozenset({"memory"}), 1),
        (tmp_path / "pids/job", frozenset({"pids"}), 1),
    }
    assert cgroups.available(found) == {"memory", "pids"}


def test_version_2_groups_are_made_beside_our_own(tmp_path: Path) -> None:
    version_2(tmp_path / "cg/app.slice", "cpu memory pids io", "cpu memory pids")
    version_2(tmp_path / "cg/app.slice/run.scope", "cpu memory pids", "")
    mounts = [f"30 25 0:26 / {tmp_path}/cg rw - cgroup2 cgroup2 rw"]
    found = cgroups.find_hierarchies(machine(tmp_path, mounts, "0::/app.slice/run.scope\n"))
    assert [(item.folder, item.version) for item in found] == [(tmp_path / "cg/app.slice", 2)]
    assert "memory" in found[0].controllers


def test_a_machine_without_control_groups_has_none(tmp_path: Path) -> None:
    assert cgroups.find_hierarchies(machine(tmp_path, ["1 1 0:1 / / rw - ext4 /dev/x rw"], "0::/\n")) == ()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, {"memory.limit_in_bytes": "104857600", "pids.max": "65", "cpu.cfs_quota_us": "150000"}),
        (2, {"memory.max": "104857600", "pids.max": "65", "cpu.max": "150000 100000"}),
    ],
)
def test_limits_are_written_in_the_words_of_each_version(
    version: int, expected: dict[str, str], tmp_path: Path
) -> None:
    hierarchy = cgroups.Hierarchy(tmp_path, frozenset({"memory", "pids", "cpu"}), version)  # type: ignore[arg-type]
    settings = cgroups._settings(hierarchy, Limits(cpus=1.5, memory_mb=100, pids=64), ())
    assert settings == expected


def test_nothing_is_made_where_nothing_is_limited(tmp_path: Path) -> None:
    hierarchy = cgroups.Hierarchy(tmp_path, frozenset({"cpu", "cpuset"}), 2)
    groups = cgroups.make_groups([hierarchy], "owner", "box", Limits(pids=5), ())
    assert (groups.folders, list(tmp_path.iterdir())) == ((), [])


def test_a_group_that_cannot_be_joined_is_removed_again(tmp_path: Path) -> None:
    hierarchy = cgroups.Hierarchy(tmp_path, frozenset({"cpuset"}), 1)
    with pytest.raises(FileNotFoundError):
        cgroups.make_groups([hierarchy], "owner", "box", Limits(cpus=1), (0,))
    assert list(tmp_path.iterdir()) == []
