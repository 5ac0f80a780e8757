"""What an author of a cube tests: conformance, and the task's own rules."""

import counter_cube.debug
from counter_cube.benchmark import CounterBenchmarkConfig
from counter_cube.tool import CounterToolConfig
from cube.core import Action
from cube.testing import check_benchmark


def test_the_cube_keeps_the_contract():
    assert check_benchmark(counter_cube.debug) == []


def test_reaching_the_target_ends_the_task_with_reward_one():
    config = next(iter(CounterBenchmarkConfig(tool_config=CounterToolConfig(start=-1)).get_task_configs()))
    task = config.make()
    task.reset()
    first, second = task.step(Action(name="increment")), task.step(Action(name="increment"))
    assert (first.reward, first.done) == (0.0, False)
    assert (second.reward, second.done) == (1.0, True)
