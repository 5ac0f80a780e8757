"""The page about audits: its catalogue is that of the code, and its example works."""

import re
from pathlib import Path

import pytest

from benchflow.evidence.audit.auditing import load_families
from benchflow.evidence.audit.battery import Battery, Bounds
from benchflow.evidence.audit.catalogue import with_catalogue
from benchflow.evidence.audit.exploit_family import Seen, wrong_with
from benchflow.evidence.trial_stage import StageOptions, open_stage
from benchflow.plugins import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"


def test_the_page_has_the_families_of_the_code():
    page = PAGE.read_text()
    assert page == with_catalogue(page), "run: python -m benchflow.evidence.audit.catalogue docs/auditing.md"


@pytest.mark.parametrize("name", FAMILIES.built_in)
def test_every_family_says_in_whole_sentences_what_it_tries_and_what_helps(name):
    family = load_families((name,))[name]
    assert wrong_with(name, family) is None
    for text in (family.title, family.remedy):
        assert re.fullmatch(r"[A-Z`/].*\.", text)
        assert "\n" not in text


@pytest.mark.anyio
async def test_the_example_of_the_page_breaks_a_verifier_that_believes_words(make_package, backend):
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found: dict = {}
    exec(code, found)
    family = found["FAMILY"]
    assert wrong_with("claims-done", family) is None
    async with open_stage(make_package(), StageOptions(sandbox=backend)) as stage:
        seen = Seen(stage.package, "shared", "/app", "root", "/root", "", (), frozenset(), ("/app/answer.txt",), ())
        report = await Battery(stage, seen, Bounds()).try_family(family)
    assert report.verdict == "broken"
