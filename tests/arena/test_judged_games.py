"""Games whose talk a judge grades: the model is asked through the gateway, and a failing one is no reward."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchflow.record import read_model_calls
from benchflow.testing import ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.xdist_group("models")]
HAGGLE = Path(__file__).parents[2] / "examples" / "packages" / "haggle-arena"


def judged(path: Path) -> Path:
    """Haggling in which the buyer is paid for its tone."""
    shutil.copytree(HAGGLE, path, ignore=shutil.ignore_patterns("evidence"))
    file = path / "verifier/verifier.md"
    text = file.read_text()
    graded = text.replace(
        "        payoffs:\n",
        '        judge: {model: openai/judge, criteria: {tone: "How friendly was the buyer?"}}\n        payoffs:\n',
    )
    lines = [
        "          buyer: tone" if line.startswith("          buyer: clip") else line for line in graded.splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")
    task = path / "task.md"
    head, _, rest = task.read_text().partition("  evidence:\n")
    task.write_text(head + "---\n" + rest.partition("\n---\n")[2])
    return path


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"tone": {"score": 0.25, "reason": "curt"}}', ("scored", 0.25, None)),
        ("I will not say.", ("unscored", None, "verifier")),
    ],
)
async def test_the_grade_of_a_model_is_the_reward_and_an_answer_without_one_is_none(tmp_path, play, reply, expected):
    with ModelServer(lambda _: reply) as server:
        machine = {**os.environ, "OPENAI_API_KEY": "sk-judge", "OPENAI_BASE_URL": server.url}
        game = await play(judged(tmp_path / "game"), "oracle", base_image="host", machine=machine)
        asked = str([request.messages for request in server.requests])
    result = game.result
    assert (result.status, result.reward, result.error and result.error.category) == expected, result.error
    assert "How friendly was the buyer?" in asked
    assert "I would like to buy it." in asked
    assert {call.place.source for call in read_model_calls(game.folder.model_calls)} == {"judge"}
