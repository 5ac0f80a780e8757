"""A real sandbox with the interpreter of the tests inside, a recorder of events, and a context for agents."""

import sys
import sysconfig
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from benchflow.agents import AgentContext, create_agent
from benchflow.sandbox.protocol import Mount, SandboxSpec

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "agents"
PYTHON = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class Recorder:
    """An event sink that keeps what it is told."""

    events: list[dict] = field(default_factory=list)

    def __call__(self, event, /, **fields):
        self.events.append({"type": event, **fields})

    def of(self, kind):
        return [event for event in self.events if event["type"] == kind]


@pytest.fixture
def spec():
    mounts = (
        Mount(Path(sys.base_prefix), "/opt/python"),
        Mount(Path(sysconfig.get_path("purelib")), "/opt/packages"),
        Mount(EXAMPLES, "/opt/examples"),
        Mount(HERE, "/opt/tests"),
    )
    return SandboxSpec(mounts=mounts)


@pytest.fixture
async def sandbox(backend, spec):
    async with backend.create(spec) as sandbox:
        yield sandbox


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def context(sandbox, recorder, tmp_path):
    return AgentContext(
        sandbox=sandbox,
        workdir="/app",
        user=None,
        env={"PYTHONPATH": "/opt/packages", "PYTHONDONTWRITEBYTECODE": "1"},
        events=recorder,
        log_folder=tmp_path / "agent",
    )


@pytest.fixture
def opened(context):
    """Opens an agent, gives the result of its prompts, and closes it whatever happens."""

    async def run(agent, *prompts, timeout=60.0, **changes):
        await agent.start(replace(context, **changes))
        try:
            return [await agent.prompt(prompt, timeout=timeout) for prompt in prompts]
        finally:
            await agent.close()

    return run


@pytest.fixture
def inside(sandbox):
    """The output of a command inside the sandbox, run as root."""

    async def run(command):
        done = await sandbox.exec(command, user="root")
        return done.stdout.decode() + done.stderr.decode()

    return run


@pytest.fixture
def changed(sandbox):
    """The paths that differ from the environment, the places of mounts left out."""

    async def paths():
        return [change.path for change in await sandbox.changes() if not change.path.startswith("/opt")]

    return paths


@pytest.fixture
def raw():
    """An agent of a few lines of JSON that behaves as told."""
    return lambda *how: create_agent(f"acp:exec {PYTHON} -S -E /opt/tests/raw_agent.py {' '.join(how)}")


@pytest.fixture
def shell_agent():
    """The example agent, written with the SDK."""
    return create_agent(f"acp:exec {PYTHON} /opt/examples/shell_agent.py")
