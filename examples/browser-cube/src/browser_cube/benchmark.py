"""The benchmark: it opens the shop, in which any number of tasks order at the same time."""

from browser_cube.shop import Shop
from browser_cube.task import OrderConfig, OrderMetadata
from cube.benchmark import Benchmark, BenchmarkConfig, BenchmarkMetadata, ResetIsolation

ORDERS = {
    "one-tea": OrderMetadata(
        id="one-tea",
        abstract_description="order one thing",
        recommended_max_steps=8,
        customer="Ada",
        delivery="by post",
        goods={"Assam": 1},
    ),
    "mixed": OrderMetadata(
        id="mixed",
        abstract_description="order several things and pick them up",
        recommended_max_steps=12,
        customer="Grace",
        delivery="pick up",
        goods={"Oolong": 2, "Arabica": 1},
    ),
}


class BrowserBenchmark(Benchmark["BrowserBenchmarkConfig"]):
    """The shop that all tasks share: `runtime_context["shop_url"]`."""

    _shop: Shop | None = None

    def _setup(self) -> None:
        self._shop = Shop()
        self._runtime_context["shop_url"] = self._shop.url

    def close(self) -> None:
        shop, self._shop = self._shop, None
        if shop is not None:
            shop.close()


class BrowserBenchmarkConfig(BenchmarkConfig[OrderMetadata]):
    """Orders in a shop."""

    benchmark_metadata = BenchmarkMetadata(
        name="browser-cube",
        version="0.1.0",
        description="A small shop in a real browser.",
        authors=["The benchcube authors"],
        license="Apache-2.0",
        num_tasks=len(ORDERS),
        tags=["example", "browser"],
        reset_isolation=ResetIsolation.NEW_INSTANCE,
    )
    task_metadata = ORDERS
    task_config_class = OrderConfig
    benchmark_class = BrowserBenchmark
