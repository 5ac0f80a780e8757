"""Packages whose judge and user are models, and what was recorded of their calls."""

from benchflow.record import read_model_calls
from episode_server import write_package

MODELS = ("litellm",)
"""What takes seconds to load in a server that asks models."""
YES = {"score": "yes", "reason": "it is"}
FILES = {
    "verifier/verifier.md": "---\nverifier:\n  strategies:\n    prose: {type: llm-judge, rubric: rubric.toml}\n---\n",
    "verifier/rubric.toml": (
        '[judge]\nmodel = "openai/test-model"\n[[criterion]]\nname = "right"\ndescription = "The answer is 42."\n'
    ),
}
USER = """user: {model: openai/test-user, persona: Terse., stop_rule: satisfied-or-2-rounds}
benchflow:
  interaction: {mode: simulated-user}
  nudges: {mode: simulated-user, nudge_budget: 2}
"""


def judged(folder, **options):
    write_package(folder, "set/judged", files=FILES, **options)
    (folder / "verifier/test.sh").unlink()


def calls(records):
    """Who called which model, in every episode."""
    return [
        [(call.place.source, call.model, call.outcome) for call in read_model_calls(path)]
        for path in sorted(records.rglob("model_calls.jsonl"))
    ]
