"""The gym layer beside cube-standard 0.1.0rc8, in one run: the same counter benchmark, written once, runs on both.

Every figure is processor time, the best of several repetitions, alternating between the two. `--no-peer` measures this
project only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lib.side_by_side import Row, compile_ours, peer_environment, print_table, run_json

PEER = "cube-standard==0.1.0rc8"
ROUNDS = 4

SCENARIO = (
    '''
import json, sys, time, types, warnings
warnings.simplefilter("ignore")
module = types.ModuleType("counter_bench"); sys.modules["counter_bench"] = module
source = """
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata
from cube.container import ContainerConfig
from cube.core import Action, Observation
from cube.task import Task, TaskConfig, TaskMetadata
from cube.tool import Tool, ToolConfig, tool_action

class CounterTool(Tool):
    def __init__(self): self.value = 0
    def reset(self): self.value = 0
    @tool_action
    def increment(self) -> str:
        "Add one."
        self.value += 1
        return "ok"
    @tool_action
    def decrement(self) -> str:
        "Subtract one."
        self.value -= 1
        return "ok"
    @tool_action
    def add(self, amount: int) -> str:
        '''
    "'''"
    """Add an amount.

        Args:
            amount: how much
        """
    "'''"
    '''
        self.value += amount
        return "ok"
    @tool_action
    def read(self) -> str:
        "Read the counter."
        return str(self.value)

class CounterToolConfig(ToolConfig):
    start: int = 0
    def make(self, container=None): return CounterTool()

class CounterMetadata(TaskMetadata):
    target: int = 0
    hint: str = ""

class CounterTask(Task[CounterMetadata]):
    def reset(self):
        self.tool.reset()
        return Observation.from_text("count"), {}
    def evaluate(self, obs=None): return float(self.tool.value == self.metadata.target), {}
    def finished(self, obs=None): return self.tool.value == self.metadata.target

class CounterTaskConfig(TaskConfig[CounterMetadata]):
    def make(self, runtime_context=None, container_backend=None):
        return CounterTask(metadata=self.metadata, tool_config=self.tool_config or CounterToolConfig(),
                           runtime_context=runtime_context)

class Counters(Benchmark):
    def _setup(self): pass
    def close(self): pass

class CounterBenchmarkConfig(BenchmarkConfig[CounterMetadata]):
    benchmark_metadata = BenchmarkMetadata(name="counter-bench", version="1", description="d", num_tasks=10000)
    task_metadata = {f"task-{i}": CounterMetadata(id=f"task-{i}", target=-1, hint="h" * 20,
                     container_config=ContainerConfig(image="img")) for i in range(10000)}
    task_config_class = CounterTaskConfig
    benchmark_class = Counters
"""
exec(compile(source, "counter_bench.py", "exec"), module.__dict__)
for value in vars(module).values():
    if isinstance(value, type) and value.__module__ == "counter_bench": pass
from cube.core import Action
from cube.task import TaskConfig
try:
    from cube.composite import CompositeBenchmarkConfig
except ImportError:
    from cube.benchmark import CompositeBenchmarkConfig

def best(work, times, repeat=7):
    lowest = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        for _ in range(times): work()
        lowest = min(lowest, (time.process_time() - start) / times)
    return lowest

def tool_of(number):
    body = {}
    for each in range(10):
        text = f"def act_{number}_{each}(self, amount: int) -> str: return 'ok'"
        scope = {}
        exec(text, scope)
        function = scope[f"act_{number}_{each}"]
        function.__doc__ = "Act.\\n\\nArgs:\\n    amount: how much"
        body[function.__name__] = module.tool_action(function)
    return type(f"Tool{number}", (module.Tool,), body)()

from cube.tool import Toolbox
box = Toolbox([tool_of(number) for number in range(10)])
last = Action(name="act_9_9", arguments={"amount": 1})
assert box.execute_action(last).contents[0].data == "ok"

config = module.CounterBenchmarkConfig(tool_config=module.CounterToolConfig())
task_config = next(iter(config.get_task_configs()))
task = task_config.make(); task.reset()
action = Action(name="increment")
composite = CompositeBenchmarkConfig(sub_bench_configs=[config])
subset = config.subset_from_list(list(config.tasks())[:5000])
live = subset.make()
spawned = list(subset.get_task_configs())[:100]
def spawn_all():
    for each in spawned: live.spawn(each)
print(json.dumps({
    "step": best(lambda: task.step(action), 5000) * 1e6,
    "action_set": best(lambda: task.action_set, 500) * 1e6,
    "toolbox": best(lambda: box.execute_action(last), 300) * 1e6,
    "json": best(lambda: TaskConfig.model_validate_json(task_config.model_dump_json()), 3000) * 1e6,
    "configs": best(lambda: list(config.get_task_configs()), 1) * 1e3,
    "composite": best(lambda: list(composite.get_task_configs()), 1) * 1e3,
    "spawn": best(spawn_all, 1) * 1e3,
}))
'''
)
IMPORTS = """
import json, os, sys
def best(statement):
    lowest = float("inf")
    for _ in range(12):
        child = os.posix_spawn(sys.executable, [sys.executable, "-c", statement], os.environ)
        used = os.wait4(child, 0)[2]
        lowest = min(lowest, used.ru_utime + used.ru_stime)
    return lowest
nothing, pydantic = best("pass"), best("import pydantic; pydantic.BaseModel")
cube, task = best("import cube"), best("import cube, cube.task")
print(json.dumps({"import": (cube - nothing) / (pydantic - nothing), "task": (task - nothing) / (pydantic - nothing)}))
"""
FIGURES = [
    ("Task.step, counter task", "step", 8, "µs"),
    ("Task.action_set, 4 actions", "action_set", 2, "µs"),
    ("Toolbox.execute_action, 100 actions", "toolbox", 5, "µs"),
    ("TaskConfig dump + load", "json", 20, "µs"),
    ("10,000 task configs", "configs", 20, "ms"),
    ("10,000 task configs, composite", "composite", 35, "ms"),
    ("100 spawns, subset of 5,000", "spawn", 3, "ms"),
    ("import cube / import pydantic", "import", 1.3, "x"),
    ("import cube.task / import pydantic", "task", 1.5, "x"),
]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--no-peer", action="store_true", help="measure only this project")
    chosen = options.parse_args()
    compile_ours()
    pythons = {"ours": Path(sys.executable)}
    if not chosen.no_peer:
        pythons["peer"] = peer_environment(PEER) / "python"
    lowest: dict[str, dict[str, float]] = {name: {} for name in pythons}
    for _ in range(ROUNDS):
        for name, python in pythons.items():
            for figure, value in (run_json(python, SCENARIO) | run_json(python, IMPORTS)).items():
                lowest[name][figure] = min(value, lowest[name].get(figure, value))
    peer = lowest.get("peer", {})
    print_table([Row(what, peer.get(key), lowest["ours"][key], target, unit) for what, key, target, unit in FIGURES])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
