"""An agent that orders what it is asked for, for `cube test`."""

from browser_cube.benchmark import ORDERS, BrowserBenchmarkConfig
from cube.core import Action, ActionSchema, Observation


def get_debug_benchmark() -> BrowserBenchmarkConfig:
    return BrowserBenchmarkConfig()


class DebugAgent:
    """Add the goods, fill in the form, order."""

    def __init__(self, task_id: str) -> None:
        order = ORDERS[task_id]
        goods = [name for name, count in order.goods.items() for _ in range(count)]
        self.plan = [
            *(Action(name="browser_click", arguments={"selector": f"text=Add {name}"}) for name in goods),
            Action(name="browser_type", arguments={"selector": "#name", "text": order.customer}),
            Action(name="browser_select_option", arguments={"selector": "#delivery", "option": order.delivery}),
            Action(name="browser_click", arguments={"selector": "#order"}),
        ]

    def __call__(self, obs: Observation, action_set: list[ActionSchema]) -> Action:
        return self.plan.pop(0)


def make_debug_agent(task_id: str) -> DebugAgent:
    return DebugAgent(task_id)
