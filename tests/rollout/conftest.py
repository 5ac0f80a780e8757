"""Packages, sandboxes in memory (real ones for tests marked `sandbox`), and agents that do what a test tells them."""

import os
from dataclasses import dataclass, field

import pytest

from benchflow.agents.protocol import Agent, TurnResult
from benchflow.record.codec import read_lines
from benchflow.rollout import RolloutConfig, run_rollout

VERIFIER = "if grep -q done /app/answer.txt 2>/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


@pytest.fixture
def backend(memory_or_local):
    return memory_or_local


@pytest.fixture
def make_package(tmp_path):
    """A package with the given frontmatter and files; gives its folder."""

    def make(frontmatter="", files=None, *, prompt="Write done into answer.txt.", name="task", verifier=VERIFIER):
        folder = tmp_path / name
        everything = {"verifier/test.sh": verifier, "oracle/solve.sh": "echo done > answer.txt\n", **(files or {})}
        text = f"---\ntask:\n  name: acme/{name}\n{frontmatter}---\n\n{prompt}\n"
        for path, content in {"task.md": text, **everything}.items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content)
        return folder

    return make


@dataclass
class Script:
    """What agents of a test do and what was seen: one shell command, or one callable, per prompt."""

    commands: list = field(default_factory=list)
    prompts: list = field(default_factory=list)
    contexts: list = field(default_factory=list)
    closed: int = 0

    def make(self, name, model):
        return ShellAgent(name, self)


class ShellAgent(Agent):
    def __init__(self, name, script):
        self.name = name
        self.script = script
        self.context = None

    async def start(self, context):
        self.context = context
        self.script.contexts.append(context)

    async def prompt(self, text, *, timeout=None):
        self.script.prompts.append((self.name, text))
        commands = self.script.commands
        command = commands[min(len(self.script.prompts), len(commands)) - 1] if commands else "true"
        if callable(command):
            command = await command(self.context)
            if isinstance(command, TurnResult):
                return command
        done = await self.context.sandbox.exec(command, user=self.context.user, env=self.context.env, timeout=timeout)
        said = done.stdout.decode()
        if said:
            self.context.events("agent_message", text=said)
        return TurnResult("end_turn", said, timed_out=done.timed_out, usage={"input_tokens": 3, "output_tokens": 2})

    async def close(self):
        self.script.closed += self.context is not None
        self.context = None


@pytest.fixture
def new_script():
    return lambda *commands: Script(list(commands))


@pytest.fixture
def run(backend, tmp_path):
    """Run a package; gives the result. The rollout's folder is `tmp_path / "out"`."""

    async def run_one(package, agent="shell", commands=(), *, out="out", **options):
        script = options.pop("script", None) or Script(list(commands))
        if agent.partition(":")[0] not in ("oracle", "nop", "script"):
            options.setdefault("make_agent", script.make)
        config = RolloutConfig(package, agent, sandbox=backend, **{"machine": {"PATH": os.environ["PATH"]}, **options})
        return await run_rollout(config, tmp_path / out)

    return run_one


@pytest.fixture
def rounds(tmp_path):
    return lambda: list(read_lines(tmp_path / "out" / "user_rounds.jsonl"))


@pytest.fixture
def events(tmp_path):
    return lambda: list(read_lines(tmp_path / "out" / "trajectory.jsonl"))
