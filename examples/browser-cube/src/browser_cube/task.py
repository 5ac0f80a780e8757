"""An order in the shop, judged by what the page has recorded."""

from typing import Any

from cube.core import Content, Observation, StructuredContent
from cube.task import RuntimeContext, Task, TaskConfig, TaskMetadata
from cube.tools.browser import BrowserTool
from cube.tools.web_page import WebPageToolConfig


class OrderMetadata(TaskMetadata):
    """What is to be ordered."""

    customer: str
    delivery: str
    goods: dict[str, int]


class OrderTask(Task[OrderMetadata, BrowserTool]):
    """Done when an order was placed, or when the agent stops."""

    shop_url: str

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        self.tool.reset()
        self.tool.goto(self.shop_url)
        wanted = ", ".join(f"{count} x {name}" for name, count in self.metadata.goods.items())
        text = f"Order {wanted} in the name of {self.metadata.customer}, {self.metadata.delivery}."
        return Observation.from_text(text) + self._seen(self.tool.page_obs()), {}

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        order = self._order()
        return float(order == self._wanted()), {"order": order}

    def finished(self, obs: Observation | None = None) -> bool:
        return self._order() is not None

    def obs_postprocess(self, obs: Observation) -> Observation:
        return self._seen(obs)

    def get_privileged_info(self) -> Content:
        return StructuredContent(data=self._wanted())

    def _order(self) -> Any:
        return self.tool.evaluate_js("() => window.placed || null")

    def _wanted(self) -> dict[str, Any]:
        return {
            "name": self.metadata.customer,
            "delivery": self.metadata.delivery,
            "goods": self.metadata.goods,
        }

    def _seen(self, obs: Observation) -> Observation:
        """Without the port of the server, which differs from run to run."""
        for content in obs.contents:
            if isinstance(content.data, str):
                content.data = content.data.replace(self.shop_url, "http://shop/")
        return obs


class OrderConfig(TaskConfig[OrderMetadata]):
    """Makes the task with a browser of its own, on the shop of the benchmark."""

    def make(self, runtime_context: RuntimeContext | None = None) -> OrderTask:
        if not runtime_context or "shop_url" not in runtime_context:
            raise ValueError("The shop is not open: make the task with `benchmark.spawn(config)`.")
        return OrderTask(
            metadata=self.metadata,
            tool_config=self.tool_config or WebPageToolConfig(),
            shop_url=runtime_context["shop_url"],
        )
