"""Several agents in one shop, in a real browser; `cube test browser-cube` checks the contract."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import browser_cube.debug
from browser_cube.benchmark import BrowserBenchmarkConfig
from cube.core import Action
from cube.testing import run_debug_episode

pytestmark = pytest.mark.slow


def test_tasks_in_one_shop_do_not_see_each_other():
    config = BrowserBenchmarkConfig()
    with config.make() as benchmark:

        def play(task_config):
            agent = browser_cube.debug.make_debug_agent(task_config.task_id)
            return run_debug_episode(benchmark.spawn(task_config), agent)["reward"]

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(play, config.get_task_configs())) == [1.0, 1.0]


def test_a_click_on_nothing_is_answered_and_a_wrong_order_scores_nothing():
    config = BrowserBenchmarkConfig().subset_from_list(["one-tea"])
    with config.make() as benchmark:
        task = benchmark.spawn(next(iter(config.get_task_configs())))
        try:
            task.tool.config.browser.timeout_sec = 0.5
            task.reset()
            output = task.step(Action(name="browser_click", arguments={"selector": "text=Add Darjeeling"}))
            assert output.error is None
            assert "[error]" in output.obs.to_markdown()
            name = Action(name="browser_type", arguments={"selector": "#name", "text": "Ada"})
            clicks = [
                Action(name="browser_click", arguments={"selector": each}) for each in ("text=Add Oolong", "#order")
            ]
            output = task.step([name, *clicks])
            assert (output.done, output.reward) == (True, 0.0)
        finally:
            task.close()
