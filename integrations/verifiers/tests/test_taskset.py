"""The taskset with verifiers itself: loading, a rollout by hand, rewards, and errors where there is no score."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.mcp import server as tool_server
from verifiers.v1.utils.loaders import load_taskset

from benchcube_packages.taskset import PackagesConfig, PackageState, PackageTools, PackageToolsConfig
from benchflow.trainers.client import Unscored

URL = os.environ["SERVED_URL"]
ROOT, BENCH = os.environ["SERVED_ROOT"], os.environ["SERVED_BENCH"]
SANDBOX = os.environ["SERVED_SANDBOX"]


def trace_of(task):
    made = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig(), name="test", trainable=False)
    return vf.Trace(task=made, state=PackageState(), agent=agent)


class TasksetTests(unittest.TestCase):
    def tasks(self, **more):
        taskset = load_taskset(PackagesConfig(id="benchcube-packages", **(more or {"url": URL})))
        return {task.data.name: task for task in taskset}

    def test_tasks_are_loaded_with_stable_keys(self) -> None:
        tasks, again = self.tasks(), self.tasks()
        self.assertIn("set/plain", tasks)
        self.assertEqual([task.key for task in tasks.values()], [task.key for task in again.values()])
        self.assertEqual(len({task.hash for task in tasks.values()}), len(tasks))
        self.assertIn("/app/answer.txt", tasks["set/plain"].data.prompt)
        self.assertEqual([*self.tasks(url=URL, split="train")], ["set/train"])
        with self.assertRaises(ValueError):
            self.tasks(url=URL, root=ROOT)

    def test_a_folder_of_a_hundred_packages_is_loaded_and_played(self) -> None:
        many = {"root": os.environ["SERVED_MANY"], "bench": BENCH, "sandbox": SANDBOX}
        tasks, train = self.tasks(**many), self.tasks(**many, split="train")
        self.assertEqual((len(tasks), len(train)), (100, 25))
        self.assertEqual(sorted(tasks), [f"many/task-{number:03}" for number in range(100)])
        self.assertEqual(len({task.key for task in tasks.values()}), 100)
        self.assertEqual(len({task.hash for task in tasks.values()}), 100)
        for number in (0, 50, 99):
            task = tasks[f"many/task-{number:03}"]
            self.assertIn(f"({number})", task.data.prompt)
            self.assertEqual(asyncio.run(self.played(task, "echo done > /app/answer.txt"))[1], 1.0)

    async def played(self, task, command: str):
        """What a command showed, and the reward after it."""
        trace = trace_of(task)
        await task.setup(trace, None)
        tools = PackageTools(PackageToolsConfig())
        await tools.setup_task(task.data)
        token = tool_server._call_state.set(trace.state)
        try:
            shown = await tools.bash(command)
            self.assertIn("error", await tools.read_file("/app/nothing"))
        finally:
            tool_server._call_state.reset(token)
        await task.score(trace)
        return shown, trace.reward

    def test_a_rollout_is_played_by_its_tools_and_scored_by_its_package(self) -> None:
        tasks = self.tasks()
        self.assertEqual(asyncio.run(self.played(tasks["set/plain"], "echo done > /app/answer.txt"))[1], 1.0)
        self.assertEqual(asyncio.run(self.played(tasks["set/plain"], "true"))[1], 0.0)
        with self.assertRaises(vf.TaskError) as caught:
            asyncio.run(self.played(tasks["set/crash"], "true"))
        self.assertIsInstance(caught.exception.__cause__, Unscored)

    def test_validating_runs_the_oracle_and_scores_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                str(Path(sys.executable).with_name("vf-validate")), "benchcube-packages",
                "--taskset.root", ROOT, "--taskset.bench", BENCH, "--taskset.sandbox", SANDBOX,
                "--runtime.type", "subprocess",
                "--output-dir", folder, "--no-rich",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
            results = [*Path(folder).rglob("results.jsonl")]
            self.assertEqual(len(results), 1, done.stdout + done.stderr)
            rows = {row["name"]: row for row in map(json.loads, results[0].read_text().splitlines())}
        self.assertEqual(rows["set/plain"]["reason"], "valid", rows["set/plain"])
        self.assertEqual(rows["set/crash"]["reason"], "error", rows["set/crash"])


if __name__ == "__main__":
    unittest.main()
