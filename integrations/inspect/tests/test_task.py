"""The task with Inspect itself, and a model whose answers are known: rewards, and no number where there is no score."""

import math
import os
import unittest

from inspect_ai import eval as run_eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from benchcube_inspect import packages

URL = os.environ["SERVED_URL"]


def counted(output: ModelOutput) -> ModelOutput:
    """With a usage, since Inspect would download a tokenizer to make one up."""
    return output.model_copy(update={"usage": ModelUsage()})


def model(command: str):
    def answers():
        while True:
            yield counted(ModelOutput.for_tool_call("mockllm", "bash", {"command": command}))
            yield counted(ModelOutput.from_content("mockllm", "I am done."))

    return get_model("mockllm/model", custom_outputs=answers())


class TaskTests(unittest.TestCase):
    def played(self, command: str, **settings):
        [log] = run_eval(
            packages(URL, split="test", **settings), model=model(command), display="none",
            log_dir=os.environ["LOG_DIR"], max_samples=1, fail_on_error=False,
        )  # fmt: skip
        return log

    def test_a_sample_has_the_reward_of_its_package_or_none(self) -> None:
        for command, reward in (("echo done > /app/answer.txt", 1.0), ("true", 0.0)):
            log = self.played(command)
            samples = {sample.id: sample for sample in log.samples}
            self.assertEqual(samples["set/plain"].scores["verdict"].value, reward, samples["set/plain"].error)
            self.assertIn("/app/answer.txt", samples["set/plain"].messages[0].text)
            crash = samples["set/crash"].scores["verdict"]
            self.assertTrue(math.isnan(crash.value))
            self.assertEqual(crash.metadata["unscored"]["category"], "verifier")
            [score] = log.results.scores
            self.assertEqual(score.metrics["mean"].value, reward)
            self.assertEqual(score.unscored_samples, 1)

    def test_strict_makes_it_an_error_of_the_sample(self) -> None:
        samples = {sample.id: sample for sample in self.played("true", strict=True).samples}
        self.assertIn("Unscored", samples["set/crash"].error.traceback)
        self.assertIsNone(samples["set/plain"].error)


if __name__ == "__main__":
    unittest.main()
