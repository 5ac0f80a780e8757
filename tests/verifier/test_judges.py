"""Judges against a local model server, over real HTTP."""

from __future__ import annotations

import http.server
import json
import threading
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.rewards import Scored
from benchflow.testing import Answer, Fault, Malformed, ModelServer
from benchflow.verifier.judging import deliverables
from benchflow.verifier.judging.deliverables import Deliverable, read_deliverables, within

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.xdist_group("models"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

RUBRIC = """\
    [judge]
    model = "openai/test-model"
    timeout = 20
    [[criterion]]
    name = "right"
    description = "The answer is 42."
    weight = 3
    [[criterion]]
    name = "clear"
    description = "It reads well."
    type = "likert"
    points = 5
    """
JUDGE = """\
    ---
    verifier:
      strategies:
        prose: {type: llm-judge, rubric: rubric.toml}
    ---
    """
FILES = {"verifier/verifier.md": JUDGE, "verifier/rubric.toml": RUBRIC}
WORK = "echo 'the answer is 42' > answer.md"


async def test_a_judge_scores_each_criterion_by_its_scale(bench, package):
    with ModelServer(
        [{"score": "yes", "reason": "it is"}, 'Well:\n```json\n{"score": 3, "reason": "ok"}\n```']
    ) as server:
        wiring = "benchflow:\n  verifier: {outputs: {artifacts: [answer.md, /gone]}}\n"
        async with bench(package(wiring, FILES, prompt="Write the answer."), **server.environment) as it:
            await it.agent("echo 'the answer is 42' > answer.md; echo x > .hidden; ln -s /etc/passwd link.txt")
            found = await it.verify()
            assert isinstance(found.verdict, Scored), found
            assert found.verdict.reward == pytest.approx((3 * 1 + 0.5) / 4)
            assert [item.reason for item in found.verdict.items] == ["it is", "ok"]
            assert json.loads((it.output / "reward-details.json").read_text())["aggregate"]["method"] == "weighted_mean"
            assert (it.output / "deliverables" / "answer.md").exists()
            assert (it.output / "artifacts/app/answer.md").read_text() == "the answer is 42\n"
            assert [issue.code for issue in found.diagnostics] == ["artifact-missing"]
    prompts = [request.prompt for request in server.requests]
    assert len(prompts) == 2
    assert "the answer is 42" in prompts[0]
    assert "Write the answer." in prompts[0]
    assert "root:" not in prompts[0]
    assert all(request.authorized for request in server.requests)


async def test_a_judge_reads_the_rubric_that_was_planned(bench, package):
    folder = package(files=FILES)
    with ModelServer([{"score": "yes", "reason": "it is"}, {"score": 3, "reason": "ok"}]) as server:
        async with bench(folder, **server.environment) as it:
            await it.agent(WORK)
            (folder / "verifier" / "rubric.toml").write_text("changed")
            assert (await it.verify()).verdict.reward == pytest.approx((3 * 1 + 0.5) / 4)


FAILURES = {
    "an outage": (Fault(500, "down"), "judge-unavailable", 3),
    "a wrong key": (Fault(401, "no"), "judge-key-refused", 1),
    "a key without rights": (Fault(403, "no"), "judge-key-refused", 1),
    "words": ("I like it.", "judge-answer-invalid", 1),
    "no score": ({"opinion": 1}, "judge-answer-invalid", 1),
    "a score that is none": ({"score": "maybe"}, "judge-answer-invalid", 1),
    "not a number": ('{"score": NaN}', "judge-answer-invalid", 1),
    "nothing": (Answer(""), "judge-answer-invalid", 1),
    "garbage": (Malformed("<html>"), "judge-unavailable", 3),
}


@pytest.mark.parametrize(("reply", "code", "asked"), FAILURES.values(), ids=FAILURES)
async def test_a_judge_that_fails_is_unscored_and_never_zero(bench, package, monkeypatch, reply, code, asked):
    monkeypatch.setattr("benchflow.verifier.judging.judge_client.PAUSE_SEC", 0.0)
    with ModelServer(reply) as server:
        async with bench(package(files=FILES), **server.environment) as it:
            await it.agent(WORK)
            verdict = (await it.verify()).verdict
            assert (verdict.category, verdict.code) == ("judge", code), verdict
            assert server.api_key not in verdict.reason
            assert not (it.output / "reward.txt").exists()
    assert len(server.requests) == asked


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_named_in_one_sentence(bench, package, status):
    with ModelServer(Fault(status, "no")) as server:
        async with bench(package(files=FILES), **server.environment) as it:
            await it.agent(WORK)
            reason = (await it.verify()).verdict.reason
    assert reason == "The judge 'openai/test-model' cannot be used: its provider refused the key in OPENAI_API_KEY."


async def test_a_missing_key_is_named_in_one_sentence_and_nothing_is_sent(bench, package):
    async with bench(package(files=FILES)) as it:
        await it.agent(WORK)
        verdict = (await it.verify()).verdict
    assert (verdict.category, verdict.code) == ("judge", "judge-key-missing")
    assert verdict.reason == "The judge 'openai/test-model' needs the variable OPENAI_API_KEY, which is not set."


async def test_a_judge_that_stumbles_is_asked_again(bench, package, monkeypatch):
    monkeypatch.setattr("benchflow.verifier.judging.judge_client.PAUSE_SEC", 0.0)
    with ModelServer([Fault(503, "busy"), {"score": 1}, {"score": 5}]) as server:
        async with bench(package(files=FILES), **server.environment) as it:
            await it.agent(WORK)
            assert (await it.verify()).verdict.reward == 1


async def test_a_batched_judge_is_asked_once_and_samples_give_the_median(bench, package):
    rubric = RUBRIC.replace("timeout = 20", 'timeout = 20\n    mode = "batched"\n    samples = 3')
    answers = [{"right": {"score": 1}, "clear": {"score": n}} for n in (1, 5, 3)]
    with ModelServer(answers) as server:
        async with bench(package(files={**FILES, "verifier/rubric.toml": rubric}), **server.environment) as it:
            await it.agent(WORK)
            assert (await it.verify()).verdict.reward == pytest.approx((3 + 0.5) / 4)


async def test_a_setting_that_nobody_honours_is_refused(bench, package):
    rubric = RUBRIC.replace("timeout = 20", 'guard = "penalize"')
    async with bench(package(files={**FILES, "verifier/rubric.toml": rubric})) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("package", "invalid-rubric")
        assert "judge.guard" in verdict.reason


ROLE = """\
    ---
    verifier:
      strategies:
        panel:
          {type: agent-judge, role: verifier_judge, model: openai/test-model, isolation: verifier-only,
           inputs: [trajectory/acp_trajectory.jsonl, /app/report.md]}
    ---
    ## role:verifier_judge
    Judge only the declared evidence.
    """


async def test_a_judge_role_sees_declared_evidence_and_its_words_are_kept_and_audited(bench, package, tmp_path):
    rollout = tmp_path / "rollout"
    (rollout / "trajectory").mkdir(parents=True)
    (rollout / "trajectory" / "acp_trajectory.jsonl").write_text('{"type": "agent_message", "text": "did it"}\n')
    files = {"verifier/verifier.md": ROLE, "oracle/solve.sh": "echo this-is-the-hidden-reference-line-42\n"}
    with ModelServer({"verdict": "pass", "reason": "echo this-is-the-hidden-reference-line-42"}) as server:
        async with bench(package(files=files, prompt="Report."), **server.environment) as it:
            await it.agent("echo 'all is well' > report.md")
            found = await it.verify(rollout=rollout)
            assert found.verdict.reward == 1
            assert found.verdict.document["metadata"]["role"] == "verifier_judge"
            exchange = json.loads((it.output / "judge-trajectory.jsonl").read_text())
            assert exchange["inputs"] == ["trajectory/acp_trajectory.jsonl", "/app/report.md"]
            audit = json.loads((it.output / "judge-audit.json").read_text())
            assert [leak["hidden"] for leak in audit["leaks"]] == ["oracle/solve.sh"]
            assert "judge-leak" in [issue.code for issue in found.diagnostics]
    assert "Judge only the declared evidence." in server.requests[0].messages[0]["content"]
    assert "did it" in server.requests[0].prompt
    assert "all is well" in server.requests[0].prompt
    assert "hidden-reference" not in server.requests[0].prompt


async def test_the_audit_of_a_step_knows_the_hidden_files_of_the_task_and_of_every_step(bench, package, tmp_path):
    secret = "echo the-secret-line-of-{}-is-not-for-judges\n"
    role = ROLE.replace("trajectory/acp_trajectory.jsonl, ", "")
    files = {
        "verifier/verifier.md": role,
        "verifier/key.txt": secret.format("task"),
        "steps/one/instruction.md": "First.",
        "steps/one/verifier/test.sh": secret.format("one"),
        "steps/two/instruction.md": "Second.",
        "steps/two/verifier/test.sh": secret.format("two"),
        "steps/two/oracle/solve.sh": secret.format("oracle"),
    }
    said = " ".join(secret.format(name).strip() for name in ("task", "one", "two", "oracle"))
    with ModelServer({"score": 1, "reason": said}) as server:
        async with bench(package("steps: [{name: one}, {name: two}]\n", files), **server.environment) as it:
            await it.agent("echo fine > report.md")
            await it.verify(step="two")
            leaks = json.loads((it.output / "judge-audit.json").read_text())["leaks"]
    assert [leak["hidden"] for leak in leaks] == [
        "verifier/key.txt",
        "steps/one/verifier/test.sh",
        "steps/two/verifier/test.sh",
        "steps/two/oracle/solve.sh",
    ]


async def test_the_judge_of_the_configuration_needs_no_document(bench, package):
    frontmatter = "verifier: {type: llm-judge, judge: {model: openai/m, rubric_path: verifier/rubric.toml}}\n"
    with ModelServer([{"score": 1}, {"score": 5}]) as server:
        folder = package(frontmatter, {"verifier/rubric.toml": RUBRIC})
        async with bench(folder, **server.environment) as it:
            await it.agent(WORK)
            assert (await it.verify()).verdict.reward == 1
    assert server.requests[0].model == "m"


class SmallContext(http.server.BaseHTTPRequestHandler):
    """A model that refuses long questions and says no to all others."""

    limit = 1 << 30
    refused: list[int] = []
    asked: list[str] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if len(body) > self.limit:
            self.refused.append(len(body))
            error = {
                "message": "This model's maximum context length is 1000 tokens.",
                "code": "context_length_exceeded",
            }
            return self._answer(400, {"error": error})
        self.asked.append(json.loads(body)["messages"][-1]["content"])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": '{"score": "no"}'}}
        return self._answer(
            200, {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    def _answer(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def small_context():
    """Starts such a model; gives its class and the variables of who asks it."""
    servers = []

    def start(limit):
        handler = type("Handler", (SmallContext,), {"limit": limit, "refused": [], "asked": []})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        return handler, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


ONE = """\
    [judge]
    model = "openai/test-model"
    [[criterion]]
    name = "right"
    description = "The answer is 42."
    """
ONE_FILES = {"verifier/verifier.md": JUDGE, "verifier/rubric.toml": ONE}
MUCH = "seq 5000 | head -c 15000 > n.txt; for i in $(seq 100 220); do cp n.txt n$i.txt; done; "


async def test_more_work_than_a_judge_can_read_is_judged_by_what_it_can(bench, package, small_context):
    model, variables = small_context(100_000)
    async with bench(package("", ONE_FILES), **variables) as it:
        await it.agent(f"{MUCH} {WORK}")
        found = await it.verify()
    assert isinstance(found.verdict, Scored), found
    assert found.verdict.reward == 0
    assert max(model.refused) < 1_000_000, "what is asked first is limited too"
    assert "the answer is 42" in model.asked[0], "a short file is shown whole"
    assert model.asked[0].count("[truncated here]") == 122


async def test_a_judge_role_is_asked_about_less_of_long_evidence(bench, package, small_context):
    role = """\
        ---
        verifier:
          strategies:
            role:
              {type: agent-judge, role: reviewer, isolation: verifier-only, inputs: [/app/a.txt],
               model: openai/test-model}
        ---
        ## role:reviewer

        Judge it.
        """
    model, variables = small_context(20_000)
    async with bench(package("", {"verifier/verifier.md": role}), **variables) as it:
        await it.agent("seq 9000 > a.txt")
        found = await it.verify()
    assert (found.verdict.category, found.verdict.code) == ("judge", "judge-answer-invalid"), (
        "this model gives no number"
    )
    assert len(model.asked[0]) < 20_000 < min(model.refused)


async def test_a_question_that_is_too_long_without_the_work_is_not_repeated(bench, package, small_context):
    model, variables = small_context(300)
    async with bench(package("", ONE_FILES), **variables) as it:
        await it.agent(WORK)
        verdict = (await it.verify()).verdict
    assert (verdict.category, verdict.code, len(model.refused)) == ("judge", "judge-unavailable", 1)


def slides(path, *parts):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, part in enumerate(parts):
            archive.writestr(f"ppt/slides/slide{number}.xml", part)


async def test_office_files_are_read_up_to_what_a_judge_is_shown(tmp_path):
    slides(
        tmp_path / "a.pptx",
        "<a><b>one</b> <c>two<d/>after</c></a>",
        "<a>three</a>",
        "<a>" + "<b>x</b>" * 20_000 + "</a>",
    )
    slides(tmp_path / "broken.pptx", "<a><b>")
    slides(tmp_path / "entity.pptx", '<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>'.encode("utf-16"))
    (tmp_path / "not.docx").write_text("no archive")
    (only,) = await read_deliverables(tmp_path)
    assert (only.name, only.truncated, len(only.text)) == ("a.pptx", True, 15_000)
    assert only.text.startswith("one two after three x x")


async def test_a_file_that_takes_too_long_to_read_leaves_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(deliverables, "_FILE_SEC", 0.3)
    slides(tmp_path / "bomb.pptx", *["<a>" + "<b/>" * 2_000_000 + "</a>"] * 4)
    slides(tmp_path / "small.pptx", "<a>word</a>")
    bomb, small = await read_deliverables(tmp_path)
    assert "could not be read within the time limit" in bomb.text
    assert small.text == "word"


PYPDF = """\
class Page:
    def __init__(self, text):
        self.text = text
    def extract_text(self):
        return self.text

class PdfReader:
    def __init__(self, path):
        self.pages = [Page(word) for word in open(path).read().split()]
"""


async def test_a_pdf_is_read_with_the_package_that_is_installed(tmp_path, monkeypatch):
    (tmp_path / "places" / "pypdf").mkdir(parents=True)
    (tmp_path / "places" / "pypdf" / "__init__.py").write_text(PYPDF)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.pdf").write_text("one two")
    monkeypatch.syspath_prepend(str(tmp_path / "places"))
    (found,) = await read_deliverables(tmp_path / "work")
    assert found.text == "one\ntwo"


@given(st.lists(st.integers(0, 5_000), max_size=60), st.integers(1_000, 50_000))
def test_what_is_shown_fits_and_cuts_only_the_longest(lengths, chars):
    files = [Deliverable(f"{number:03}", "x" * length) for number, length in enumerate(lengths)]
    shown = [item for item in within(files, chars) if item.name != "(more)"]
    assert sum(len(item.name) + len(item.text) for item in shown) <= chars
    longest = max((len(item.text) for item in shown), default=0)
    assert all(item.truncated or item in files for item in shown)
    assert all(len(item.text) >= longest - 1 for item in shown if item.truncated)
    if sum(len(item.name) + len(item.text) for item in files) <= chars and len(files) * 200 <= chars:
        assert shown == files
