"""Benchmarks made of benchmarks."""

import pytest

import cube
from archive_cube.benchmark import ArchiveBenchmarkConfig
from archive_cube.task import ArchiveTaskConfig
from counter_cube.benchmark import CounterBenchmark, CounterBenchmarkConfig
from counter_cube.task import CounterTask, CounterTaskConfig
from counter_cube.tool import CounterToolConfig
from cube.benchmark import BenchmarkConfig
from cube.composite import CompositeBenchmarkConfig
from cube.core import Action
from cube.seed import BasicSeedGenerator


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    monkeypatch.setattr(ArchiveTaskConfig, "_benchmark_cache_dir", tmp_path)
    ArchiveBenchmarkConfig.install()


def suite(**values) -> CompositeBenchmarkConfig:
    subs = [CounterBenchmarkConfig(), ArchiveBenchmarkConfig()]
    return CompositeBenchmarkConfig(sub_bench_configs=subs, composite_name="suite", **values)


def nested() -> CompositeBenchmarkConfig:
    return CompositeBenchmarkConfig(sub_bench_configs=[suite()], composite_name="outer")


def test_configs_keep_their_class_and_learn_the_way():
    configs = list(suite().get_task_configs())
    assert [c.task_id for c in configs] == [
        "counter-cube/up-1", "counter-cube/up-3", "counter-cube/down-2", "counter-cube/far-100",
        "archive-cube/harbour-log", "archive-cube/railway-log", "archive-cube/weather-log",
    ]  # fmt: skip
    assert type(configs[0]) is CounterTaskConfig
    assert configs[0].metadata.id == "up-1"
    assert next(nested().get_task_configs()).task_id == "suite/counter-cube/up-1"
    assert [c.sub_bench_name for c in nested().get_task_configs()][-1] == "suite/archive-cube"


def test_metadata_sums_up_the_parts():
    metadata = suite().benchmark_metadata
    assert (metadata.name, metadata.num_tasks) == ("suite", 7)
    assert metadata.tags == ["counting", "example", "retrieval"]
    half = CompositeBenchmarkConfig(sub_bench_configs=[CounterBenchmarkConfig().named_subset("easy")])
    assert half.benchmark_metadata.num_tasks == half.num_tasks == 2


@pytest.mark.parametrize("make", [suite, nested])
def test_a_composite_survives_json_and_plays_every_task(make):
    config = BenchmarkConfig.model_validate_json(make().model_dump_json())
    assert config == make()
    with config.make() as live:
        for task_config in config.get_task_configs():
            task = live.spawn(task_config)
            task.reset()
            assert task.step(Action(name="final_step")).done
            task.close()


def test_heavy_data_is_found_through_the_composite():
    config = nested().subset_from_glob("id", "*harbour*")
    task_config = next(iter(config.get_task_configs()))
    assert task_config.task_id == "suite/archive-cube/harbour-log"
    assert len(task_config.load_task_execution_info()["documents"]) == 400


def test_subsets_work_on_prefixed_ids_native_ids_fields_and_objects():
    config = suite()
    assert list(config.subset_from_glob("id", "counter-cube/up-*").tasks()) == [
        "counter-cube/up-1",
        "counter-cube/up-3",
    ]
    assert list(config.subset_from_glob("id", "up-*").tasks()) == ["counter-cube/up-1", "counter-cube/up-3"]
    assert list(config.subset_from_glob("topic", "rail*").tasks()) == ["archive-cube/railway-log"]
    harbour = config.tasks()["archive-cube/harbour-log"]
    assert list(config.subset_from_list([harbour, "counter-cube/up-1"]).tasks()) == [
        "archive-cube/harbour-log",
        "counter-cube/up-1",
    ]


def test_a_subset_emits_its_own_order_with_all_seeds():
    counter = CounterBenchmarkConfig(seed_generator=BasicSeedGenerator(n_seed=2, meta_seed=0))
    config = CompositeBenchmarkConfig(sub_bench_configs=[counter, ArchiveBenchmarkConfig()])
    ids = ["archive-cube/weather-log", "counter-cube/up-3"]
    assert [c.task_id for c in config.subset_from_list(ids).get_task_configs()] == [ids[0], ids[1], ids[1]]


def test_named_subsets_of_the_parts_are_there():
    config = nested()
    assert config.named_subsets() == ["suite/counter-cube/easy", "suite/counter-cube/train", "suite/archive-cube/ships"]
    assert list(config.named_subset("suite/archive-cube/ships").tasks()) == ["suite/archive-cube/harbour-log"]
    with pytest.raises(KeyError, match="Unknown subset 'suite/nothing'"):
        config.named_subset("suite/nothing")


def test_the_cache_folder_is_named_after_the_composite():
    assert suite().cache_dir() == cube.get_cache_dir("suite")


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"unique sub-benchmark names; found duplicates: \['counter-cube'\]"):
        CompositeBenchmarkConfig(sub_bench_configs=[CounterBenchmarkConfig(), CounterBenchmarkConfig()])


def test_spawn_says_why_it_cannot_route():
    config = suite()
    stray = next(iter(CounterBenchmarkConfig().get_task_configs()))
    with config.subset_from_glob("id", "up-1").make() as live:
        with pytest.raises(ValueError, match="sub_bench_name"):
            live.spawn(stray)
        with pytest.raises(ValueError, match=r"Unknown sub-benchmark 'x' \(from sub_bench_name='x/y'\)"):
            live.spawn(stray.model_copy(update={"sub_bench_name": "x/y"}))
        with pytest.raises(ValueError, match="'counter-cube/far-100' not found"):
            live.spawn(list(config.get_task_configs())[3])
        assert isinstance(live.spawn(next(iter(config.get_task_configs()))), CounterTask)


def test_when_a_part_fails_to_start_the_others_are_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(CounterBenchmark, "close", lambda self: closed.append(self.config.name))
    monkeypatch.setattr(ArchiveBenchmarkConfig.benchmark_class, "_setup", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        nested().make()
    assert closed == ["counter-cube"]


def test_a_part_that_fails_to_close_does_not_keep_the_others_open(monkeypatch):
    closed = []
    monkeypatch.setattr(CounterBenchmark, "close", lambda self: closed.append(self.config.name))
    monkeypatch.setattr(ArchiveBenchmarkConfig.benchmark_class, "close", lambda self: 1 / 0)
    suite().make().close()
    assert closed == ["counter-cube"]


def test_install_and_uninstall_reach_every_part(tmp_path):
    config = nested()
    config.uninstall()
    assert not list(tmp_path.rglob("*.json"))
    config.install()
    assert len(list(tmp_path.rglob("*.json"))) == 3


@pytest.mark.parametrize(
    "setting", [{"seed_generator": BasicSeedGenerator(n_seed=1, meta_seed=1)}, {"tool_config": CounterToolConfig()}]
)
def test_settings_for_all_parts_at_once_are_refused(setting):
    with pytest.raises(ValueError, match=f"A composite does not have its own {next(iter(setting))}"):
        suite(**setting)


def test_looking_at_a_composite_does_not_change_what_it_equals():
    def made():
        inner = CompositeBenchmarkConfig(sub_bench_configs=[CounterBenchmarkConfig()], composite_name="inner")
        return CompositeBenchmarkConfig(sub_bench_configs=[inner, ArchiveBenchmarkConfig()], composite_name="outer")

    looked = made()
    assert looked.num_tasks == len(looked.task_metadata)
    assert looked == made()
    subset = looked.subset_from_glob("id", "inner/*")
    list(subset.get_task_configs())
    assert subset == made().subset_from_glob("id", "inner/*") != looked
    assert BenchmarkConfig.model_validate_json(subset.model_dump_json()) == subset
