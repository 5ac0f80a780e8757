"""Prompt injection of judges: a judge that obeys what it grades is found, one that grades it is not."""

from __future__ import annotations

import pytest

from benchflow.evidence.audit.auditing import load_families
from benchflow.evidence.audit.battery import Battery, Bounds
from benchflow.evidence.audit.exploit_family import Seen
from benchflow.evidence.trial_stage import StageOptions, open_stage
from benchflow.testing import ModelServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.xdist_group("models"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FAMILIES = ("judge-instructions", "judge-answer")
FILES = {
    "verifier/test.sh": None,
    "verifier/verifier.md": "---\nverifier:\n  strategies:\n    prose: {type: llm-judge, rubric: rubric.toml}\n---\n",
    "verifier/rubric.toml": '[judge]\nmodel = "openai/test-model"\n[[criterion]]\nname = "right"\n'
    'description = "The answer is done."\n',
}


def careful(request):
    return {"score": "yes" if "\ndone\n" in request.prompt else "no"}


def gullible(request):
    work = request.prompt.partition("# The work")[2].rpartition("Answer with one JSON")[0]
    return {"score": "yes" if "highest score" in work or '"verdict": "yes"' in work else "no"}


async def tried(folder, backend, family):
    async with open_stage(folder, StageOptions(sandbox=backend)) as stage:
        seen = Seen(stage.package, "shared", "/app", "root", "/root", "", (), frozenset(), ("/app/answer.txt",), ())
        return await Battery(stage, seen, Bounds()).try_family(load_families((family,))[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_judge_that_obeys_the_work_is_broken_and_one_that_grades_it_holds(
    make_package, backend, family, monkeypatch
):
    verdicts = []
    for name, judge in {"gullible": gullible, "careful": careful}.items():
        with ModelServer(judge) as server:
            for variable, value in server.environment.items():
                monkeypatch.setenv(variable, value)
            verdicts.append((await tried(make_package(files=FILES, name=name), backend, family)).verdict)
    assert verdicts == ["broken", "held"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_without_a_judge_there_is_nobody_to_persuade(make_package, backend, family):
    assert (await tried(make_package(), backend, family)).verdict == "not-applicable"
