"""How far a judge agrees with itself: measured where there is one, and compared with what the package declares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import BenchflowError
from benchflow.evidence.agreement import agreement_issues, measured_agreement
from benchflow.evidence.prove import ProveOptions, prove_package
from benchflow.evidence.standard_files import CALIBRATION, standard_files
from benchflow.evidence.trial_stage import StageOptions
from benchflow.task.config.evidence_config import JudgeAgreement
from benchflow.task.package import load_package
from benchflow.testing import ModelServer

FILES = {
    "verifier/test.sh": None,
    "verifier/verifier.md": "---\nverifier:\n  strategies:\n    prose: {type: llm-judge, rubric: rubric.toml}\n---\n",
    "verifier/rubric.toml": '[judge]\nmodel = "openai/test-model"\n[[criterion]]\nname = "right"\n'
    'description = "The answer is done."\n',
}
REQUIRED = """\
benchflow:
  evidence:
    verifier: {flake_rate: 0.5}
    calibration:
      judge_agreement: {required: true, sample_count: 4, min_pairwise_agreement: 0.9}
"""


def test_the_share_of_equal_pairs_is_the_agreement_of_a_judge_that_says_yes_or_no():
    found = measured_agreement([(1.0, 1.0, 0.0), (0.0, 0.0), (1.0,)])
    assert (found.sample_count, found.states) == (5, 2)
    assert found.pairwise_agreement == pytest.approx(2 / 4)


@given(st.lists(st.lists(st.floats(0, 1), max_size=6), max_size=4))
def test_the_agreement_is_that_of_all_pairs(states):
    pairs = [(a, b) for state in states for index, a in enumerate(state) for b in state[:index]]
    found = measured_agreement(states)
    if not pairs:
        assert found is None
    else:
        assert found.pairwise_agreement == pytest.approx(1 - sum(abs(a - b) for a, b in pairs) / len(pairs))


def test_what_is_declared_and_not_measured_is_an_error_only_if_it_is_required():
    assert agreement_issues(None, None) == []
    for required, severity in ((True, "error"), (False, "warning")):
        [issue] = agreement_issues(None, JudgeAgreement(required=required))
        assert (issue.code, issue.severity) == ("judge-unmeasured", severity)


@pytest.fixture
def proven(make_package, backend, monkeypatch):
    async def run(judge, frontmatter=REQUIRED):
        with ModelServer(judge) as server:
            for variable, value in server.environment.items():
                monkeypatch.setenv(variable, value)
            package = load_package(make_package(frontmatter, FILES))
            return await prove_package(package, ProveOptions(StageOptions(sandbox=backend)))

    return run


def careful(request):
    return {"score": "yes" if "\ndone\n" in request.prompt else "no"}


@pytest.mark.slow  # the client loads for seconds
@pytest.mark.xdist_group("models")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.anyio
async def test_a_judge_that_always_says_the_same_agrees(proven):
    report = await proven(careful)
    assert report.proven, report
    assert report.judge_agreement.pairwise_agreement == 1.0
    assert (report.judge_agreement.sample_count, report.judge_agreement.states) == (13, 2)
    assert "judge-agreement" not in report.leaderboard.unchecked
    assert '"pairwise_agreement": 1.0' in standard_files(report, None)[CALIBRATION]


@pytest.mark.slow  # the client loads for seconds
@pytest.mark.xdist_group("models")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.anyio
async def test_a_judge_that_wavers_is_not_proven_where_agreement_is_required(proven):
    calls = iter(range(1000))

    def wavering(request):
        good = "\ndone\n" in request.prompt and next(calls) % 3
        return {"score": "yes" if good else "no"}

    report = await proven(wavering)
    assert not report.proven
    assert report.judge_agreement.pairwise_agreement < 0.9
    assert [issue.code for issue in report.issues if issue.severity == "error"] == ["judge-disagrees"]


@pytest.mark.anyio
async def test_a_judge_without_a_key_is_reported_with_the_key_that_is_missing(make_package, backend, monkeypatch):
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(variable, raising=False)
    package = load_package(make_package(files=FILES))
    with pytest.raises(BenchflowError, match="OPENAI_API_KEY") as caught:
        await prove_package(package, ProveOptions(StageOptions(sandbox=backend)))
    assert caught.value.category == "judge"
