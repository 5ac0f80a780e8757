"""Gym tasks of packages that are made of a few lines."""

import pytest

from benchflow.gym import PackageBenchmarkConfig
from benchflow.gym.sandbox_container import LOOP, SandboxContainerBackend
from benchflow.sandbox.local.local_backend import LocalBackend
from cube.core import Action


class Gym:
    """A task of a folder, and short ways to drive it."""

    def __init__(self, folder, sandbox, **settings):
        benchmark = PackageBenchmarkConfig(paths=[str(folder)], sandbox=sandbox, base_image="host", **settings)
        (config,) = benchmark.get_task_configs()
        self.task = config.make()

    def reset(self):
        return self.task.reset()[0].to_markdown()

    def act(self, name, **arguments):
        return self.task.step(Action(name=name, arguments=arguments))

    def bash(self, command):
        output = self.act("bash", command=command)
        assert output.error is None
        return output.obs.contents[0].data["stdout"]

    def actions(self):
        return {action.name for action in self.task.action_set}


@pytest.fixture
def gym(sandbox_name):
    """Makes gyms, in memory unless a test is marked `sandbox`; each is closed after the test."""
    made = []

    def make(folder, **settings):
        made.append(Gym(folder, sandbox_name, **settings))
        return made[-1]

    yield make
    for one in made:
        one.task.close()


@pytest.fixture
def make_package(tmp_path):
    """A folder with these files."""

    def make(files):
        folder = tmp_path / "package"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    return make


@pytest.fixture(scope="module")
def containers(local_store):
    """Launches containers in a backend that ends with the module; the one that other tests left open comes back."""
    backend = LocalBackend(local_store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SandboxContainerBackend._backends, "local", backend)
        yield SandboxContainerBackend()
    LOOP.run(backend.close)
