"""The environment contract of TRL, driven by hand: rows, reset, tools, rewards, and None where there is no score."""

import inspect
import os
import unittest

from benchcube_trl import ServedPackages
from benchflow.trainers.client import Unscored

URL, TOKEN = os.environ["SERVED_URL"], os.environ["SERVED_TOKEN"]


class EnvironmentTests(unittest.TestCase):
    def setUp(self) -> None:
        self.served = ServedPackages(URL, token=TOKEN)
        self.addCleanup(self.served.close)

    def row(self, name: str) -> dict:
        return next(row for row in self.served.rows() if row["id"] == name)

    def test_a_rollout_is_played_to_its_reward(self) -> None:
        environment = self.served.environment()
        self.assertIn("/app/answer.txt", environment.reset(**self.row("set/plain")))
        self.assertIn("[exit code 3]", environment.bash(command="exit 3"))
        environment.write_file(path="/app/answer.txt", text="done\n")
        self.assertIn("done", environment.read_file(path="/app/answer.txt"))
        self.assertIn("over", environment.submit())
        self.assertIn("error", environment.bash(command="true"))
        self.assertEqual(environment.get_reward(), 1.0)
        environment.reset(**self.row("set/plain"))
        self.assertEqual(environment.get_reward(), 0.0)

    def test_work_without_a_score_is_none_or_raised_and_never_zero(self) -> None:
        environment = self.served.environment()
        environment.reset(**self.row("set/crash"))
        self.assertIsNone(environment.get_reward())
        strict = ServedPackages(URL, token=TOKEN, strict=True)
        self.addCleanup(strict.close)
        environment = strict.environment()
        environment.reset(**self.row("set/crash"))
        with self.assertRaises(Unscored):
            environment.get_reward()
        with self.assertRaises(RuntimeError):
            strict.environment().get_reward()

    def test_public_methods_are_documented_tools(self) -> None:
        environment = self.served.environment()
        tools = [name for name, _ in inspect.getmembers(environment, inspect.ismethod) if not name.startswith("_")]
        self.assertEqual(tools, ["bash", "get_reward", "read_file", "reset", "submit", "write_file"])
        for name in {*tools} - {"get_reward", "reset"}:
            self.assertIn("Returns:", getattr(environment, name).__doc__)


if __name__ == "__main__":
    unittest.main()
