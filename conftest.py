"""Keeps what tests write away from the user's own folders, lets their processes be interrupted, marks and schedules
them."""

import atexit
import gc
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

_cache = tempfile.mkdtemp(prefix="cube-cache-")
os.environ["CUBE_CACHE_DIR"] = _cache
atexit.register(shutil.rmtree, _cache, ignore_errors=True)

# Nothing that a test writes has to survive a loss of power, and each wait for the disk takes longer than most tests.
os.fsync = os.fdatasync = lambda _: None

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores interrupts, and so would everything the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
# New examples in every run, but few of them; `make test` is thorough.
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=25)
# For mutation runs: the same examples every time, so that results can be compared; and to fail is enough.
settings.register_profile(
    "repeatable",
    settings.get_profile("thorough"),
    max_examples=100,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("quick")

_SANDBOXES = {"local_backend", "bench", "containers", "site"}
"""Fixtures behind which sandboxes are started."""


_LONGEST_ID = 80


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a test after the beginning of a long text: its name is sent around, and kept in the environment."""
    if isinstance(val, str | bytes) and len(val) > _LONGEST_ID:
        return ascii(val[:_LONGEST_ID])[1:-1]
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is collected is garbage: searching it takes as long as the rest, and is repeated while tests run."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def _group(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("xdist_group")
    return None if marker is None else marker.args[0]


def _weight(item: pytest.Item) -> int:
    """Roughly how long a test takes, compared with others."""
    if item.get_closest_marker("slow") or item.get_closest_marker("engine"):
        return 100
    return 20 if item.get_closest_marker("sandbox") else 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell unit tests from those that start sandboxes; in parallel, begin with the groups and tests that take longest,
    so that all workers finish together."""
    for item in items:
        if _SANDBOXES & set(getattr(item, "fixturenames", ())):
            item.add_marker("sandbox")
    if hasattr(config, "workerinput"):
        groups = Counter[str]()
        for item in items:
            if group := _group(item):
                groups[group] += _weight(item)
        items.sort(key=lambda item: (-groups[group], 0) if (group := _group(item)) else (0, -_weight(item)))


_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a number of its own: pytest looks for a free number among the folders of all tests before."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(_numbers)}", numbered=False)


class _Scheduling(LoadGroupScheduling):
    """`--dist loadgroup` that keeps to the order of tests, and forgets what is done: it counts the pending tests of a
    worker after each test, and over all groups that the worker was ever given that takes longer than many tests do.

    In runs without slow tests a file is a group, so that what its tests share is made once.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._by_file = "not slow" in config.option.markexpr
        config.option.loadscopereorder = self._by_file

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if self._by_file and group == nodeid else group

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][group].values()):
            del self.assigned_work[node][group]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    """Schedule groups ourselves, and leave other ways to distribute tests as they are."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadgroup" else None
