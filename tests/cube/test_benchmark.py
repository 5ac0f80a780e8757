"""Benchmarks: metadata, views, seeds, life."""

import pickle
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PrivateAttr

import cube
from counter_cube.benchmark import CounterBenchmark, CounterBenchmarkConfig
from counter_cube.task import CounterTaskConfig, CounterTaskMetadata
from counter_cube.tool import CounterToolConfig
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.metadata_files import MetadataFileError
from cube.seed import BasicSeedGenerator
from cube.task import TaskConfig, TaskMetadata

METADATA = BenchmarkMetadata(name="b", version="1", description="d")


def bench(names=("a", "b", "c"), metadata=METADATA, benchmark=CounterBenchmark, **attributes):
    """A benchmark class of its own, with its own task config class."""
    own = type("OwnTaskConfig", (CounterTaskConfig,), {"__module__": __name__})
    tasks = {name: CounterTaskMetadata(id=name, target=index) for index, name in enumerate(names)}
    body = {
        "__module__": __name__,
        "benchmark_metadata": metadata,
        "task_metadata": tasks,
        "task_config_class": own,
        "benchmark_class": benchmark,
    }
    return type("OwnBenchmarkConfig", (BenchmarkConfig,), body | attributes)


def test_metadata_is_read_from_files_beside_the_module():
    config = CounterBenchmarkConfig()
    assert config.name == "counter-cube"
    assert config.tasks()["down-2"] == CounterTaskMetadata(
        id="down-2", split="val", abstract_description="two steps down", recommended_max_steps=5, target=-2
    )


def write_module(folder: Path, name: str, files: dict[str, str]) -> str:
    for file, text in files.items():
        (folder / file).write_text(text)
    (folder / f"{name}.py").write_text(
        textwrap.dedent("""
            from cube.benchmark import Benchmark, BenchmarkConfig
            from cube.task import Task, TaskConfig, TaskMetadata
            class Meta(TaskMetadata):
                level: int = 0
                tags: list[str] = []
                note: str = ""
            class Config(TaskConfig[Meta]):
                def make(self, runtime_context=None, container_backend=None): ...
            class Live(Benchmark):
                def _setup(self): ...
                def close(self): ...
            class Bench(BenchmarkConfig[Meta]):
                task_config_class = Config
                benchmark_class = Live
        """)
    )
    return name


BENCH_JSON = '{"name": "filed", "version": "1", "description": "d", "num_tasks": 1}'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("task_metadata.json", '[{"id": "x", "level": 2, "tags": ["p"], "note": "[no json]"}]'),
        ("task_metadata.json", '{"x": {"id": "x", "level": 2, "tags": ["p"], "note": "[no json]"}}'),
        ("task_metadata.csv", 'id,level,tags,note,split\nx,2,"[""p""]",[no json],\n'),
    ],
)
def test_typed_rows_need_no_type_key(tmp_path, monkeypatch, file, text):
    name = write_module(tmp_path, f"filed_{abs(hash(text))}", {"benchmark_metadata.json": BENCH_JSON, file: text})
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    task = module.Bench().tasks()["x"]
    assert (task.level, task.tags, task.note, task.split) == (2, ["p"], "[no json]", "test")


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("task_metadata.json", '[{"id": "x"}, {"id": "y", "level": "high"}]', r"row 2, level: .*integer"),
        ("task_metadata.json", '[{"id": "x", "colour": 1}]', r"row 1, colour: Extra inputs"),
        ("task_metadata.json", '[{"id": "x"}, {"id": "x"}]', r"row 2: id 'x' appears twice"),
        ("task_metadata.json", '[{"level": 1}]', r"row 1, id: Field required"),
        ("task_metadata.json", "[3]", r"row 1: "),
        ("task_metadata.json", "3", r"must contain a JSON list or object"),
        ("task_metadata.json", "{", r"is not valid JSON"),
        ("task_metadata.csv", "id,level\nx,1\ny,high\n", r"row 2 \(line 3\), level: .*integer"),
        ("task_metadata.csv", "id\nx,2\n", r"more cells than the header"),
        ("task_metadata.csv", "id,tags\nx,[1\n", r"column 'tags': not valid JSON"),
        ("benchmark_metadata.csv", "name,version,description\na,1,d\nb,1,d\n", r"exactly one row, not 2"),
        (
            "benchmark_metadata.json",
            '{"name": "x", "version": "1", "description": "d", "colour": 1}',
            r"no field 'colour'",
        ),
    ],
)
def test_a_corrupt_row_is_named_with_file_and_row(tmp_path, monkeypatch, file, text, reason):
    files = (
        {"task_metadata.json": '[{"id": "x"}]'}
        if file.startswith("benchmark")
        else {"benchmark_metadata.json": BENCH_JSON}
    )
    name = write_module(tmp_path, f"corrupt_{abs(hash((file, text)))}", files | {file: text})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MetadataFileError, match=rf"{file}.*{reason}"):
        __import__(name)


def test_a_benchmark_without_metadata_says_what_is_missing():
    with pytest.raises(TypeError, match=r"OwnBenchmarkConfig\.task_metadata must be a dict"):
        bench(task_metadata=None)
    with pytest.raises(TypeError, match=r"task_config_class must be a subclass of TaskConfig"):
        bench(task_config_class=int)
    with pytest.raises(TypeError, match=r"benchmark_class must be a subclass of Benchmark"):
        bench(benchmark_class=None)
    with pytest.raises(TypeError, match="must map task ids to TaskMetadata"):
        bench(task_metadata={"a": 1})


def test_the_cache_folder_is_stamped_on_the_task_config():
    config = bench()
    assert config.task_config_class._benchmark_cache_dir == cube.get_cache_dir("b")
    assert config.task_config_class.task_execution_cache_dir() == cube.get_cache_dir("b") / "tasks_execution_info"


def test_an_overridden_cache_folder_holds_for_the_tasks_too(tmp_path):
    config = bench(cache_dir=classmethod(lambda cls: tmp_path))
    config.task_config_class.save_task_execution_info("a", {"x": 1})
    assert next(iter(config().get_task_configs())).load_task_execution_info() == {"x": 1}
    assert (tmp_path / "tasks_execution_info" / "a.json").is_file()


def test_a_task_config_has_one_owner():
    config = bench()
    with pytest.raises(TypeError, match="already owned by benchmark"):
        bench(task_config_class=config.task_config_class, metadata=METADATA.model_copy(update={"name": "other"}))


def test_without_an_owner_the_package_names_the_folder():
    class Loose(CounterTaskConfig):
        pass

    assert Loose.task_execution_cache_dir() == cube.get_cache_dir(__name__.partition(".")[0]) / "tasks_execution_info"


def test_every_task_gets_a_config_with_the_tool_and_every_seed():
    config = bench()(tool_config=CounterToolConfig(start=1), seed_generator=BasicSeedGenerator(n_seed=2, meta_seed=7))
    configs = list(config.get_task_configs())
    assert [c.task_id for c in configs] == ["a", "a", "b", "b", "c", "c"]
    assert all(c.tool_config == CounterToolConfig(start=1) for c in configs)
    assert len({c.seed for c in configs}) == 6
    assert [c.seed for c in configs] == [c.seed for c in config.get_task_configs()]
    assert configs[1].metadata is config.tasks()["a"]


def test_seeds_are_the_same_on_every_machine():
    assert BasicSeedGenerator(n_seed=3, meta_seed=0)(TaskMetadata(id="a")) == [2626678088, 1425377803, 3966548905]


def test_configs_made_fast_equal_configs_made_by_hand():
    config = bench()(tool_config=CounterToolConfig())
    cls = config.task_config_class
    by_hand = [cls(metadata=m, tool_config=config.tool_config, seed=None) for m in config.tasks().values()]
    made = list(config.get_task_configs())
    assert made == by_hand
    assert [c.model_fields_set for c in made] == [c.model_fields_set for c in by_hand]
    assert [c.model_dump_json() for c in made] == [c.model_dump_json() for c in by_hand]


def test_a_config_class_with_validators_is_validated_for_every_task():
    from pydantic import model_validator

    class Picky(CounterTaskConfig):
        @model_validator(mode="after")
        def _no_b(self):
            if self.metadata.id == "b":
                raise ValueError("not b")
            return self

    with pytest.raises(ValueError, match="not b"):
        list(bench(task_config_class=Picky)().get_task_configs())


def test_a_benchmark_config_survives_json():
    config = CounterBenchmarkConfig(
        task_ids=["up-1"],
        tool_config=CounterToolConfig(start=3),
        seed_generator=BasicSeedGenerator(n_seed=1, meta_seed=2),
    )
    assert BenchmarkConfig.model_validate_json(config.model_dump_json()) == config


# -- subsets ------------------------------------------------------------------------------------------------------


def test_a_subset_keeps_the_given_order_and_leaves_the_original_alone():
    config = bench()()
    subset = config.subset_from_list(["c", "a", "c"])
    assert list(subset.tasks()) == ["c", "a"]
    assert subset.num_tasks == 2
    assert config.num_tasks == 3
    assert [c.task_id for c in subset.get_task_configs()] == ["c", "a"]
    assert subset.tasks() is subset.tasks()


def test_subsets_compose():
    config = CounterBenchmarkConfig()
    assert list(config.named_subset("easy").subset_from_glob("recommended_max_steps", "5").tasks()) == ["up-3"]
    assert CounterBenchmarkConfig.named_subsets() == ["easy", "train"]
    assert list(config.subset_from_list([config.tasks()["up-1"]]).tasks()) == ["up-1"]


@pytest.mark.parametrize(
    ("act", "error", "reason"),
    [
        (lambda c: c.subset_from_list([]), ValueError, "non-empty sequence"),
        (lambda c: c.subset_from_list("up-1"), ValueError, "non-empty sequence"),
        (lambda c: c.subset_from_list([3]), ValueError, "non-empty sequence"),
        (lambda c: c.subset_from_list(["nope"]), ValueError, r"do not exist in the benchmark: \['nope'\]"),
        (lambda c: c.subset_from_list(["up-1"]).subset_from_list(["up-3"]), ValueError, "do not exist"),
        (lambda c: c.subset_from_glob("id", "zz*"), ValueError, "No tasks found matching glob pattern 'zz\\*'"),
        (lambda c: c.subset_from_glob("colour", "*"), ValueError, "no field 'colour'"),
        (lambda c: c.model_copy(update={"task_ids": ["up-1", "no"]}).tasks(), KeyError, "has no tasks \\['no'\\]"),
        (lambda c: c.named_subset("hard"), KeyError, "Unknown subset 'hard'"),
    ],
)
def test_a_subset_of_nothing_is_refused(act, error, reason):
    with pytest.raises(error, match=reason):
        act(CounterBenchmarkConfig())


@given(st.lists(st.sampled_from(["up-1", "up-3", "down-2", "far-100"]), min_size=1, max_size=8))
def test_a_list_subset_is_the_list_without_repeats(ids):
    assert list(CounterBenchmarkConfig().subset_from_list(ids).tasks()) == list(dict.fromkeys(ids))


@pytest.mark.parametrize("kind", ["link to nothing", "link to itself", "folder"])
def test_a_metadata_file_that_cannot_be_one_is_told_and_not_passed_over(tmp_path, monkeypatch, kind):
    name = f"odd_{kind.replace(' ', '_')}"
    path = tmp_path / "task_metadata.json"
    module = write_module(tmp_path, name, {"benchmark_metadata.json": BENCH_JSON, "task_metadata.csv": "id\na\n"})
    path.mkdir() if kind == "folder" else path.symlink_to(path if "itself" in kind else tmp_path / "gone")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MetadataFileError, match=r"task_metadata\.json must be a file"):
        __import__(module)


def test_metadata_files_may_be_links(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/tasks").write_text('[{"id": "linked"}]')
    module = write_module(tmp_path, "linked_bench", {"benchmark_metadata.json": BENCH_JSON})
    (tmp_path / "task_metadata.json").symlink_to("elsewhere/tasks")
    monkeypatch.syspath_prepend(tmp_path)
    __import__(module)
    assert list(sys.modules[module].Bench.task_metadata) == ["linked"]


def test_looking_at_a_config_does_not_change_what_it_equals():
    config = CounterBenchmarkConfig(tool_config=CounterToolConfig(start=1)).subset_from_glob("id", "up-*")
    again = BenchmarkConfig.model_validate_json(config.model_dump_json())
    assert config == again
    assert (list(config.tasks()), config.num_tasks, len(list(config.get_task_configs()))) == (["up-1", "up-3"], 2, 2)
    assert config == again == config.model_copy() == config.model_copy(deep=True)
    assert config != config.subset_from_list(["up-1"])
    assert config != CounterBenchmarkConfig().subset_from_glob("id", "up-*")
    assert pickle.loads(pickle.dumps(config)) == config


def test_equality_is_that_of_the_class_and_its_own_state():
    class Noted(CounterBenchmarkConfig):
        note: str = ""
        _mark: int = PrivateAttr(default=0)

    plain, noted = CounterBenchmarkConfig().subset_from_list(["up-1"]), Noted().subset_from_list(["up-1"])
    noted.tasks()
    assert plain != noted
    assert noted == Noted(task_ids=["up-1"])
    assert noted != Noted(task_ids=["up-1"], note="other")
    noted._mark = 1
    assert noted != Noted(task_ids=["up-1"])


def test_views_of_views_do_not_share_what_they_remember():
    outer = CounterBenchmarkConfig().subset_from_list(["up-3", "up-1", "down-2"])
    first = outer.tasks()
    inner = outer.subset_from_list(["down-2", "up-3"])
    assert list(inner.tasks()) == ["down-2", "up-3"]
    assert outer.tasks() is first


def test_tasks_are_counted_where_the_author_does_not_say_how_many_there_are():
    counted = bench()
    assert counted.benchmark_metadata.num_tasks == 3
    assert METADATA.num_tasks == 0, "what the author wrote is the author's"
    more = type("More", (counted,), {"__module__": __name__, "task_metadata": {**counted.task_metadata, **DOWN}})
    assert more.benchmark_metadata.num_tasks == 4
    assert bench(metadata=METADATA.model_copy(update={"num_tasks": 9})).benchmark_metadata.num_tasks == 9


DOWN = {"d": CounterTaskMetadata(id="d", target=-1)}


# -- life ---------------------------------------------------------------------------------------------------------


class Recording(Benchmark):
    log: list[str] = []  # shared on purpose, read by the tests
    fail = False

    def _setup(self):
        self.log.append("setup")
        self._runtime_context["url"] = "here"
        if self.fail:
            raise OSError("no server")

    def close(self):
        self.log.append("close")


@pytest.fixture
def recording():
    return type("OwnRecording", (Recording,), {"log": []})


def test_spawned_tasks_share_the_runtime_context(recording):
    config = bench(benchmark=recording)()
    with config.make() as live:
        task = live.spawn(next(iter(config.get_task_configs())))
        assert task.runtime_context == {"url": "here"}
    assert recording.log == ["setup", "close"]


def test_only_tasks_of_the_view_are_spawned(recording):
    config = bench(benchmark=recording)()
    others = list(config.get_task_configs())
    with (
        config.subset_from_list(["a"]).make() as live,
        pytest.raises(ValueError, match=r"'b' not found .* has 1 tasks"),
    ):
        live.spawn(others[1])


def test_a_set_up_that_fails_is_closed(recording):
    recording.fail = True
    with pytest.raises(OSError, match="no server"):
        bench(benchmark=recording)().make()
    assert recording.log == ["setup", "close"]


def test_an_abstract_intermediate_benchmark_needs_no_metadata():
    from abc import abstractmethod

    class Base(BenchmarkConfig):
        @abstractmethod
        def flavour(self): ...

    assert Base.__abstractmethods__ == {"flavour"}


def test_bare_and_parametrised_forms_are_the_same():
    assert isinstance(CounterBenchmarkConfig(), BenchmarkConfig)
    assert issubclass(CounterTaskConfig, TaskConfig)
    assert sys.modules[CounterTaskConfig.__module__].CounterTaskConfig is CounterTaskConfig
