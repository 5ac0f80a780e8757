"""Checks that a task or a whole benchmark follows the contract. Authors call them from pytest.

    from cube.testing import check_benchmark
    def test_the_cube_keeps_the_contract():
        assert check_benchmark(my_cube.debug) == []

Every violated rule is a `Finding`; no exception of the task escapes. Configs and metadata of all tasks are checked.
Some tasks are created and played, at most two at a time, since each of them may start a container.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, Final

from pydantic import ValidationError

from cube.benchmark import Benchmark, BenchmarkConfig, make_benchmark
from cube.composite import CompositeBenchmarkConfig
from cube.core import Observation
from cube.differences import observation_difference
from cube.episodes import DebugAgent, DebugModule
from cube.findings import Broken, Findings, require
from cube.launches import stop_running, watched_launches
from cube.replays import check_final_state, check_repeated, play, summary
from cube.resource import InfraConfig
from cube.seed import AbstractSeedGenerator
from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata
from cube.task_rules import check_alone, check_json, reset

CHECKS: Final[dict[str, str]] = {
    "debug-module": "get_debug_benchmark and make_debug_agent work",
    "metadata": "metadata is complete and matches the tasks",
    "json": "metadata and configs survive a JSON round trip",
    "seeds": "seeds are the same every time",
    "install": "install() can be repeated",
    "setup": "the benchmark sets up and closes",
    "make": "the config creates a live task",
    "actions": "actions are listed, unique and described",
    "reset": "reset() resets the tool and states the objective, the same every time",
    "info": "get_privileged_info() and get_status() return the declared types",
    "evaluate": "evaluate() returns a finite reward and changes nothing",
    "step": "step() follows the gym contract",
    "stop": "the agent's stop is evaluated, or not accepted",
    "reproducible": "two tasks of one config start in the same state",
    "isolated": "tasks do not change each other",
    "episode": "the debug agent reaches reward 1",
    "close": "close() can be repeated and stops the container",
    "containers": "no container or other resource is left running",
}
"""Every rule that is checked, by id, in order."""

LIVE: Final = 20
"""How many tasks are made and played."""
LIVE_WITH_CONTAINERS: Final = 3
"""How many of them may have a container; each is started up to three times."""

Spawn = Callable[[TaskConfig[Any]], Task[Any]]


def check_task(
    config: TaskConfig[Any], *, agent: DebugAgent | None = None, spawn: Spawn | None = None, max_steps: int = 20
) -> Findings:
    """Check one task in instances made by `spawn` (default: `config.make()`); with an agent, play it to the end."""
    findings = Findings()
    findings.tasks = 1
    findings.holds("json", config.task_id, check_json, config, TaskConfig)
    _check_live(config, agent, spawn or (lambda known: known.make()), findings, max_steps)
    return findings


def check_benchmark(
    source: DebugModule | BenchmarkConfig[Any] | ModuleType,
    *,
    max_steps: int = 20,
    tasks: Sequence[str] = (),
    live: int | None = None,
    infra: InfraConfig | None = None,
) -> Findings:
    """Check a benchmark. A debug module also provides agents that must reach reward 1.

    Of its tasks these are made and played: those named in `tasks`, or at most `live`. By default these are up to 20,
    three of which have a container. `infra` launches the resources of the benchmark.
    """
    findings = Findings()
    agents: Callable[[str], DebugAgent] | None = None
    config: Any = source
    if not isinstance(source, BenchmarkConfig):
        with findings.rule("debug-module"):
            for name in ("get_debug_benchmark", "make_debug_agent"):
                require(
                    callable(getattr(source, name, None)), f"'{getattr(source, '__name__', source)}' has no {name}()"
                )
            module: Any = source
            config, agents = module.get_debug_benchmark(), module.make_debug_agent
            require(isinstance(config, BenchmarkConfig), "get_debug_benchmark() must return a BenchmarkConfig")
            require(config.num_tasks, "the debug benchmark has no tasks")
        if findings:
            return findings
    findings.holds("metadata", None, _check_metadata, config)
    _check_static(config, findings)
    findings.holds("install", None, lambda: (config.install(), config.install()))
    before = _active(infra)
    with watched_launches() as launched:
        with findings.rule("setup"), make_benchmark(config, infra) as benchmark:
            _check_tasks(benchmark, agents, findings, max_steps, _chosen(config, tasks, live))
        with findings.rule("containers"):
            running = stop_running(launched)
            left = _end_new(infra, before)
            require(not running, "containers are still running after everything was closed", ", ".join(running))
            require(not left, "resources are still running after everything was closed", ", ".join(left))
    return findings


def _active(infra: InfraConfig | None) -> dict[str, str]:
    """What this process, as far as the infrastructure names it, has launched and not closed: run id to resource."""
    runs = infra.list_active() if infra is not None else []
    return {run["run_id"]: str(run.get("resource")) for run in runs if run.get("owner", [None])[0] == os.getpid()}


def _end_new(infra: InfraConfig | None, before: Container[str]) -> list[str]:
    """End what was launched meanwhile and not closed; the names of the resources."""
    left = {run: name for run, name in _active(infra).items() if run not in before}
    for run in left:
        if infra is not None:
            infra.cleanup(run)
    return list(left.values())


def _chosen(config: BenchmarkConfig[Any], tasks: Sequence[str], live: int | None) -> list[TaskConfig[Any]]:
    """The tasks to play: those that are named, or some of each part of the benchmark."""
    configs = list(config.get_task_configs())
    if tasks:
        return [known for known in configs if known.task_id in tasks]
    parts: dict[tuple[str | None, type], list[TaskConfig[Any]]] = {}
    for known in configs:
        parts.setdefault((known.sub_bench_name, type(known)), []).append(known)
    chosen: list[TaskConfig[Any]] = []
    boxed = 0
    for turn in range(max(map(len, parts.values()), default=0)):
        for part in parts.values():
            box = turn < len(part) and part[turn].metadata.container_config is not None
            full = len(chosen) >= (LIVE if live is None else live)
            if turn < len(part) and not full and not (live is None and box and boxed >= LIVE_WITH_CONTAINERS):
                chosen.append(part[turn])
                boxed += box
    return chosen


def _check_tasks(
    benchmark: Benchmark[Any],
    agents: Callable[[str], DebugAgent] | None,
    findings: Findings,
    max_steps: int,
    chosen: list[TaskConfig[Any]],
) -> None:
    configs = list(benchmark.config.get_task_configs())
    findings.tasks = len(configs)
    made: dict[str, DebugAgent] = {}
    for config in configs:
        if agents is not None:
            with findings.rule("debug-module", config.task_id):
                made[config.task_id] = agents(config.task_id)
    shared = _state_of(benchmark._runtime_context)
    for config in chosen:
        _check_live(config, made.get(config.task_id), benchmark.spawn, findings, max_steps)
    if not findings.played:
        return
    with findings.rule("isolated"):
        changed = [key for key, now in _state_of(benchmark._runtime_context).items() if shared.get(key) != now]
        require(not changed, "tasks change the runtime context, which they share", ", ".join(changed))


def _state_of(context: RuntimeContext) -> dict[str, str]:
    """What can be seen of shared values: plain ones as JSON, others by their identity."""

    def seen(live: object) -> str:
        return f"{type(live).__name__} {id(live)}"

    def state(value: object) -> str:
        try:
            return json.dumps(value, default=seen, skipkeys=True)
        except (ValueError, RecursionError):
            return seen(value)

    return {str(key): state(value) for key, value in context.items()}


def _check_live(
    config: TaskConfig[Any], agent: DebugAgent | None, spawn: Spawn, findings: Findings, max_steps: int
) -> None:
    """The rules of a task that is alone, then those that need a second and a third one."""
    task_id = config.task_id
    task = _made(config, spawn, findings)
    if task is None:
        return
    try:
        start = check_alone(task, task_id, findings)
    finally:
        _close(task, task_id, findings)
    second = None if start is None else _made(config, spawn, findings)
    if start is None or second is None:
        return
    try:
        if findings.holds("reproducible", task_id, _check_start, second, start[0]) and agent is not None:
            _check_episode(second, agent, config, spawn, findings, max_steps)
    finally:
        _close(second, task_id, findings)


def _check_start(task: Task[Any], expected: Observation) -> None:
    difference = observation_difference(expected, reset(task))
    require(not difference, "another task of the same config starts differently", difference)


def _check_episode(
    task: Task[Any], agent: DebugAgent, config: TaskConfig[Any], spawn: Spawn, findings: Findings, max_steps: int
) -> None:
    """Play, then play the same again: in this task after a reset, and in a third one."""
    task_id = config.task_id
    with findings.rule("episode", task_id):
        played = play(task, agent, max_steps)
        findings.played.append(summary(task_id, played))
        if not findings.holds("evaluate", task_id, check_final_state, task, played):
            return
        # In a thread of its own: libraries such as Playwright's allow one session per thread.
        with ThreadPoolExecutor(1) as thread:
            third = thread.submit(_made, config, spawn, findings).result()
            if third is None:
                return
            try:
                broken = check_repeated(task, third, played, thread)
            finally:
                thread.submit(_close, third, task_id, findings).result()
        findings.checked.add("isolated")
        if broken is not None:
            with findings.rule(broken[0], task_id):
                raise broken[1]


def _made(config: TaskConfig[Any], spawn: Spawn, findings: Findings) -> Task[Any] | None:
    made: list[Task[Any]] = []
    with findings.rule("make", config.task_id):
        task: Any = spawn(config)
        require(isinstance(task, Task), f"make() returned {type(task).__name__}, not a Task")
        if task.id != config.metadata.id:
            task.close()
            raise Broken("the id of the task differs from its config", f"'{task.id}', not '{config.metadata.id}'")
        made.append(task)
    return made[0] if made else None


def _close(task: Task[Any], task_id: str, findings: Findings) -> None:
    container = task.container
    try:
        with findings.rule("close", task_id):
            task.close()
            task.close()
            running = stop_running([container] if container is not None else [])
            require(not running, "the container is still running after close(): super().close() stops it")
    finally:
        stop_running([container] if container is not None else [])


def _check_static(config: BenchmarkConfig[Any], findings: Findings) -> None:
    """JSON and seeds, of all tasks. What a part of a config loses is not told once more of the whole."""
    whole = findings.holds("json", None, check_json, config, BenchmarkConfig)
    lost: set[int] = set()
    for task_id, metadata in config.task_metadata.items():
        if not findings.holds("json", task_id, check_json, metadata, TaskMetadata):
            lost.add(id(metadata))
    for known in config.get_task_configs():
        if id(known.metadata) not in lost:
            sent = known if whole else known.model_copy(update={"tool_config": None})
            findings.holds("json", known.task_id, check_json, sent, TaskConfig)
    findings.holds("seeds", None, _check_seeds, config)


def _check_metadata(config: BenchmarkConfig[Any]) -> None:
    metadata = config.benchmark_metadata
    for field in ("name", "version") if config.is_dynamic() else ("name", "version", "description"):
        require(getattr(metadata, field).strip(), f"benchmark metadata has no {field}")
    everything = config.task_metadata
    require(everything, "there are no tasks")
    require(
        "num_tasks" not in metadata.model_fields_set or metadata.num_tasks == len(everything),
        f"num_tasks is {metadata.num_tasks}, but {len(everything)} tasks exist: leave it out, and they are counted",
    )
    for task_id, task in everything.items():
        require(task_id == task.id or task_id.endswith(f"/{task.id}"), f"task '{task.id}' is listed as '{task_id}'")
    ids = list(dict.fromkeys(known.task_id for known in config.get_task_configs()))
    require(
        ids == list(config.tasks()),
        "get_task_configs() does not yield the tasks of tasks(), in order",
        f"{len(ids)} and {config.num_tasks} tasks",
    )
    for name in config.named_subsets():
        try:
            config.model_copy(update={"task_ids": None}).named_subset(name)
        except (ValueError, ValidationError) as error:
            raise Broken(f"named subset '{name}': {error}") from error


SEEDED: Final = 100
"""For how many tasks seeds are drawn in another process."""
_SEEDS: Final = """
import json, sys
from cube.typed import TypedBaseModel
generator, tasks = json.load(sys.stdin)
draw = TypedBaseModel.model_validate(generator)
print(json.dumps([list(draw(TypedBaseModel.model_validate(task))) for task in tasks]))
"""


def _check_seeds(config: BenchmarkConfig[Any]) -> None:
    """Asked twice, and in another process whose hashes differ."""
    seeds, again = ([(known.task_id, known.seed) for known in config.get_task_configs()] for _ in range(2))
    require(seeds == again, "get_task_configs() returns different seeds when called again")
    for part in _parts(config):
        if part.seed_generator is not None:
            tasks = list(part.tasks().values())[:SEEDED]
            elsewhere = _seeds_elsewhere(part.seed_generator, tasks)
            here = [list(part.seed_generator(task)) for task in tasks]
            require(elsewhere in (None, here), "another process gets different seeds: they may depend on hash()")


def _parts(config: BenchmarkConfig[Any]) -> list[BenchmarkConfig[Any]]:
    if not isinstance(config, CompositeBenchmarkConfig):
        return [config]
    return [part for sub in config.sub_bench_configs for part in _parts(sub)]


def _seeds_elsewhere(generator: AbstractSeedGenerator, tasks: list[TaskMetadata]) -> list[list[int]] | None:
    """The seeds of tasks in another process; None if it does not find their classes, which the round trip is about."""
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    try:
        job = json.dumps([generator.model_dump(mode="json"), [task.model_dump(mode="json") for task in tasks]])
    except (TypeError, ValueError):
        return None
    result = subprocess.run(
        [sys.executable, "-c", _SEEDS],
        input=job,
        env=os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(result.stdout) if result.returncode == 0 else None
