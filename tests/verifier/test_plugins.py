"""Strategies of installed plugins."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.anyio

DOCUMENT = "---\nverifier:\n  strategies:\n    mine: {type: coin, config: {side: heads}}\n---\n"
MODULE = """\
from benchflow.rewards import Scored


async def score(run):
    async with run.box() as box:
        found = await box.sandbox.read_file("/app/coin.txt")
    return Scored(float(found.decode().strip() == run.strategy.config["side"]))
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A distribution with a strategy, installed for one test."""
    folder = tmp_path / "site"
    (folder / "coin-1.0.dist-info").mkdir(parents=True)
    (folder / "coin-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: coin\nVersion: 1.0\n")
    points = "[benchflow.verifier_strategies]\ncoin = coin_strategy:score\nbroken = no_such_module:score\n"
    (folder / "coin-1.0.dist-info" / "entry_points.txt").write_text(points)
    (folder / "coin_strategy.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("coin_strategy", None)


async def test_a_plugin_scores_its_own_type(bench, package, plugin):
    async with bench(package(files={"verifier/verifier.md": DOCUMENT})) as it:
        await it.agent("echo heads > coin.txt")
        found = await it.verify()
        assert found.verdict.reward == 1, found
        assert (found.strategy, found.name) == ("coin", "mine")


async def test_a_plugin_that_cannot_be_loaded_is_unscored(bench, package, plugin):
    async with bench(package(files={"verifier/verifier.md": DOCUMENT.replace("coin", "broken")})) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("infrastructure", "plugin-invalid")


async def test_without_the_plugin_the_type_is_unknown(package):
    from benchflow.task import load_package

    loaded = load_package(package(files={"verifier/verifier.md": DOCUMENT}))
    assert "unknown-strategy" in [issue.code for issue in loaded.issues]
