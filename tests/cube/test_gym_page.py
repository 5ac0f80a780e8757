"""The page about the gym layer shows code that runs as it stands."""

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page):
    """The Python of a page, with line numbers as in the page."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield "\n" * (text[: found.start(1)].count("\n")) + found[1]


@pytest.mark.slow
def test_the_code_of_the_page_runs_from_top_to_bottom(monkeypatch, capsys):
    module = types.ModuleType("gym_page")
    monkeypatch.setitem(sys.modules, "gym_page", module)
    debug = types.ModuleType("my_benchmark.debug")
    monkeypatch.setitem(sys.modules, "my_benchmark", types.ModuleType("my_benchmark"))
    monkeypatch.setitem(sys.modules, "my_benchmark.debug", debug)
    monkeypatch.setattr(sys.modules["my_benchmark"], "debug", debug, raising=False)
    page = ROOT / "docs" / "gym.md"
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), module.__dict__)
    assert capsys.readouterr().out == "3\n\nTask finished by the agent. 1.0 True\n"
    riddles = module.RiddleBenchmarkConfig()
    riddles.install()
    task = next(iter(riddles.get_task_configs())).make()
    assert task.reset()[0].to_markdown() == "How much is two and three?"
    assert module.output.obs.to_markdown() == "1"
