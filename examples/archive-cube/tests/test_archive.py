"""Conformance, and the way of heavy data from install to the worker."""

import pytest

import archive_cube.debug
from archive_cube.benchmark import ArchiveBenchmarkConfig
from archive_cube.task import ArchiveTaskConfig
from cube.testing import check_benchmark


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(ArchiveTaskConfig, "_benchmark_cache_dir", tmp_path)
    return tmp_path


def test_the_cube_keeps_the_contract():
    assert check_benchmark(archive_cube.debug) == []


def test_a_worker_without_the_archive_is_told_what_to_run():
    config = next(iter(ArchiveBenchmarkConfig().get_task_configs()))
    with pytest.raises(RuntimeError, match="cube install"):
        config.make()


def test_uninstall_removes_the_archives(cache):
    ArchiveBenchmarkConfig.install()
    assert list(cache.rglob("*.json"))
    ArchiveBenchmarkConfig.uninstall()
    assert not list(cache.rglob("*.json"))
