"""Strategies made of others: hybrid, gain; and those that read what was recorded: episodes, submissions."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchflow.environment import Environment
from benchflow.errors import VerifierFailure
from benchflow.rewards import Scored
from benchflow.testing import Fault, ModelServer
from benchflow.verifier import Verifier
from benchflow.verifier.submission import complete_submission

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.xdist_group("models"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

HYBRID = """\
    ---
    verifier:
      default_strategy: both
      strategies:
        exact: {type: script, command: sh check.sh}
        prose: {type: llm-judge, rubric: rubric.toml}
        both: {type: hybrid, combine: product, factors: {tests: exact, style: {strategy: prose}}}
    ---
    """
HYBRID_FILES = {
    "verifier/verifier.md": HYBRID,
    "verifier/check.sh": "cat /app/answer.txt > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
    "verifier/rubric.toml": """\
        [judge]
        model = "openai/m"
        [[criterion]]
        name = "a"
        description = "b"
        type = "numeric"
        """,
}


async def test_factors_of_different_strategies_are_multiplied_and_recorded(bench, package):
    with ModelServer({"score": 50}) as server:
        async with bench(package(files=HYBRID_FILES), **server.environment) as it:
            await it.agent("echo 0.5 > answer.txt")
            found = await it.verify()
            assert isinstance(found.verdict, Scored), found
            assert found.verdict.reward == 0.25
            assert [(factor.name, factor.source, factor.reward) for factor in found.verdict.factors] == [
                ("tests", "exact", 0.5),
                ("style", "prose", 0.5),
            ]
            assert (it.output / "factors" / "tests" / "test-stdout.txt").exists()


async def test_a_factor_without_a_reward_leaves_the_whole_without_one(bench, package):
    with ModelServer(Fault(401, "no")) as server:
        async with bench(package(files=HYBRID_FILES), **server.environment) as it:
            await it.agent("echo 1 > answer.txt")
            verdict = (await it.verify()).verdict
            assert (verdict.category, verdict.code) == ("judge", "judge-key-refused")
            assert "'style'" in verdict.reason


GAIN = """\
    ---
    verifier:
      default_strategy: gain
      strategies:
        raw: {type: script, command: sh check.sh}
        gain: {type: gain, strategy: raw%s}
    ---
    """
GAIN_FILES = {
    "verifier/verifier.md": GAIN % "",
    "verifier/check.sh": "cd /logs/verifier; cat /app/level > reward.txt 2>/dev/null || echo 0.2 > reward.txt\n",
    "oracle/solve.sh": "echo 0.7 > /app/level\n",
}


async def test_a_gain_is_measured_between_live_ends_and_remembered(bench, package):
    async with bench(package(files=GAIN_FILES)) as it:
        await it.agent("echo 0.45 > level")
        found = await it.verify()
        assert isinstance(found.verdict, Scored), found
        assert found.verdict.reward == pytest.approx(0.5)
        assert found.verdict.metrics == {"score": 0.45, "baseline": 0.2, "ceiling": 0.7}
        assert len(list((it.folder / "cache").iterdir())) == 2
        again = await it.verify()
        assert again.verdict.reward == pytest.approx(0.5)
        assert [issue.code for issue in again.diagnostics] == ["gain-cached", "gain-cached"]


async def test_measured_ends_are_shared_by_rollouts_through_the_users_cache(backend, package, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    folder = package("verifier: {env: {LEVEL: '${LEVEL:-0}'}}\n", GAIN_FILES)

    async def codes(number: int, **machine: str) -> list[str]:
        async with await Environment.from_task(folder, sandbox=backend, machine=machine) as environment:
            found = await Verifier(environment, machine=machine).verify(tmp_path / f"out-{number}")
            assert isinstance(found.verdict, Scored), found
            return [issue.code for issue in found.diagnostics]

    kept = tmp_path / "store" / "measured"
    assert await codes(1) == []
    assert [json.loads(file.read_text())["schema"] for file in kept.iterdir()] == ["benchcube.measured.v1"] * 2
    assert await codes(2) == ["gain-cached", "gain-cached"]
    assert await codes(3, LEVEL="1") == [], "what the verifier is given decides what it measures"
    (folder / "verifier" / "note.txt").write_text("another package by its digest")
    assert await codes(4) == []
    assert len(list(kept.iterdir())) == 6
    for file in kept.iterdir():
        file.write_text('{"schema": "benchcube.measured.v1"')
    assert await codes(5) == [], "what cannot be read is measured again"


async def test_a_cache_that_cannot_be_written_costs_a_note_and_no_score(backend, package, tmp_path):
    (tmp_path / "file").write_text("in the way")
    async with await Environment.from_task(package(files=GAIN_FILES), sandbox=backend, machine={}) as environment:
        found = await Verifier(environment, machine={}, cache=tmp_path / "file" / "cache").verify(tmp_path / "out")
    assert isinstance(found.verdict, Scored), found
    assert [issue.code for issue in found.diagnostics] == ["gain-not-cached", "gain-not-cached"]


@pytest.mark.sandbox
async def test_ends_are_measured_on_the_same_substitute_of_an_image(bench, package):
    files = {**GAIN_FILES, "verifier/Dockerfile": "FROM debian:12\nWORKDIR /app\n"}
    folder = package("verifier: {environment_mode: separate}\nartifacts: [level]\n", files)
    async with bench(folder, base_image="host") as it:
        await it.agent("echo 0.45 > level")
        verdict = (await it.verify()).verdict
    assert verdict.metrics == {"score": 0.45, "baseline": 0.2, "ceiling": 0.7}, verdict


async def test_an_end_may_be_a_case_of_the_evidence(bench, package):
    frontmatter = """\
        benchflow:
          evidence:
            acceptance_live:
              cases: [{name: half, type: partial, command: "echo 0.4 > /app/level", expect: {reward_min: 0}}]
        """
    files = {**GAIN_FILES, "verifier/verifier.md": GAIN % ", baseline: half"}
    async with bench(package(frontmatter, files)) as it:
        await it.agent("echo 0.7 > level")
        found = await it.verify()
        assert found.verdict.metrics["baseline"] == 0.4
        assert found.verdict.reward == pytest.approx(1)


UNMEASURED = {
    "no span": ({"oracle/solve.sh": "echo 0.2 > /app/level\n"}, "verifier", "gain-degenerate"),
    "an oracle that fails": ({"oracle/solve.sh": "exit 3\n"}, "verifier", "oracle-failed"),
    "no oracle": ({"oracle/solve.sh": None}, "package", "missing-oracle"),
    "an unknown case": ({"verifier/verifier.md": GAIN % ", ceiling: nobody"}, "package", "unknown-case"),
}


@pytest.mark.parametrize(("files", "category", "code"), UNMEASURED.values(), ids=UNMEASURED)
async def test_a_gain_without_ends_is_unscored(bench, package, files, category, code):
    merged = {name: text for name, text in {**GAIN_FILES, **files}.items() if text is not None}
    async with bench(package(files=merged)) as it:
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == (category, code)


EPISODE = """\
    ---
    verifier:
      strategies:
        episode: {type: ors-episode%s}
    ---
    """


@pytest.mark.parametrize(
    ("settings", "lines", "reward"),
    [
        ("", [{"type": "dense", "granularity": "step", "reward": 0.1}, {"type": "terminal", "reward": 0.75}], 0.75),
        (", reward_aggregation: mean", [{"reward": 0.5}, {"reward": 1}], 0.75),
        (
            ", reward_aggregation: last_non_null, terminal_policy: finished_true",
            [{"reward": 0.25, "finished": True}, {"reward": 1}],
            0.25,
        ),
    ],
)
async def test_an_episode_is_settled_from_its_events(bench, package, tmp_path, settings, lines, reward):
    rollout = tmp_path / "rollout"
    (rollout / "trajectory").mkdir(parents=True)
    (rollout / "trajectory" / "ors-rewards.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with bench(package(files={"verifier/verifier.md": EPISODE % settings})) as it:
        found = await it.verify(rollout=rollout)
        assert isinstance(found.verdict, Scored), found
        assert found.verdict.reward == reward
        details = json.loads((it.output / "reward-details.json").read_text())
        assert details["inputs"] == [{"path": "trajectory/ors-rewards.jsonl", "records": 2}]


async def test_events_that_an_agent_puts_into_its_box_do_not_count_for_the_rollout(bench, package, tmp_path):
    async with bench(package(files={"verifier/verifier.md": EPISODE % ""})) as it:
        await it.agent('mkdir -p trajectory; echo \'{"type": "terminal", "reward": 1}\' > trajectory/ors-rewards.jsonl')
        verdict = (await it.verify(rollout=tmp_path)).verdict
        assert verdict.code == "input-missing"


BOARD = """\
    ---
    verifier:
      strategies:
        board: {type: leaderboard-submission, inputs: [/app/model.txt], %s}
    ---
    """


def board(how: str, scorer: str = "") -> dict[str, str]:
    return {"verifier/verifier.md": BOARD % how, "verifier/scorer.sh": scorer}


async def test_a_command_scores_the_sealed_bundle(bench, package):
    scorer = 'ls $BENCHFLOW_SUBMISSION/files; echo \'{"reward": 0.5, "id": "run-7"}\' > $BENCHFLOW_RECORD\n'
    async with bench(package(files=board("command: sh scorer.sh", scorer))) as it:
        await it.agent("echo weights > model.txt")
        found = await it.verify()
        assert isinstance(found.verdict, Scored), found
        assert found.verdict.reward == 0.5
        manifest = json.loads((it.output / "submission" / "manifest.json").read_text())
        assert manifest["files"][0]["sha256"] == hashlib.sha256(b"weights\n").hexdigest()
        assert json.loads((it.output / "leaderboard-record.json").read_text())["id"] == "run-7"


READS_THE_WORK = """\
    set -e
    read -r code < /app/model.txt
    case $code in
      right) echo '{"reward": 1.0}';;
      wrong) echo '{"reward": 0.0}';;
      refused) echo '{"status": "rejected", "message": "not a model"}';;
      text) echo 'not JSON';;
      list) echo '[1]';;
      another) echo '{"reward": 1.0, "seal": "sha256:0"}';;
      beyond) echo '{"reward": 7}';;
      nothing) ;;
      *) exit 3;;
    esac
    """


@pytest.mark.parametrize("work", ["refused", "text", "list", "another", "beyond", "nothing", "odd"])
async def test_a_submission_that_breaks_the_scorers_command_is_scored_0(bench, package, work):
    async with bench(package(files=board("command: sh scorer.sh", READS_THE_WORK))) as it:
        await it.agent(f"echo {work} > model.txt")
        found = await it.verify()
        assert isinstance(found.verdict, Scored), found
        assert found.verdict.reward == 0
        assert [note.code for note in found.diagnostics] == ["agent-broke-verification"]
        await it.agent("echo right > model.txt")
        assert (await it.verify()).verdict.reward == 1


async def test_a_submission_that_a_server_cannot_answer_stays_unscored(bench, package):
    """Without a submission nothing is sent, so nothing shows that the server works."""
    handler = type("Handler", (_Scorer,), {"answer": b"not JSON", "seen": []})
    with served(handler) as port:
        async with bench(package(files=board(f"url: 'http://127.0.0.1:{port}/submit'"))) as it:
            await it.agent("echo weights > model.txt")
            assert (await it.verify()).verdict.code == "scorer-unusable"


async def test_without_an_answer_the_result_is_pending_and_can_be_completed_later(bench, package):
    async with bench(package(files=board("command: sh scorer.sh", "exit 75\n"))) as it:
        await it.agent("echo weights > model.txt")
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("verifier", "pending")
        assert complete_submission(it.output, {"status": "queued"}).code == "pending"
        with pytest.raises(VerifierFailure, match="another submission"):
            complete_submission(it.output, {"reward": 1, "seal": "sha256:other"})
        assert complete_submission(it.output, {"status": "scored", "result": {"reward": 0.9}}).reward == 0.9
        assert (it.output / "reward.txt").read_text() == "0.9\n"


async def test_a_bundle_that_was_changed_is_not_completed(bench, package):
    async with bench(package(files=board("command: sh scorer.sh", "exit 75\n"))) as it:
        await it.agent("echo weights > model.txt")
        await it.verify()
        next((it.output / "submission" / "files").iterdir()).write_text("better weights\n")
        with pytest.raises(VerifierFailure, match="was changed"):
            complete_submission(it.output, {"reward": 1})


class _Scorer(http.server.BaseHTTPRequestHandler):
    status = 200
    answer: bytes | None = None
    seen: list[dict[str, object]] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"body": body, "authorization": self.headers.get("Authorization")})
        answer = self.answer or json.dumps({"reward": 0.6, "seal": body["manifest"]["seal"]}).encode()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(answer if self.status == 200 else b"")

    def log_message(self, *_):
        pass


@contextmanager
def served(handler: type[_Scorer]) -> Iterator[int]:
    """The port of a scorer for the length of a block."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("status", "outcome"), [(200, 0.6), (503, "pending"), (403, "scorer-refused")])
async def test_a_url_gets_the_bundle_with_its_secret(bench, package, status, outcome):
    handler = type("Handler", (_Scorer,), {"status": status, "seen": []})
    with served(handler) as port:
        how = f"url: 'http://127.0.0.1:{port}/submit', secret: BOARD_TOKEN"
        frontmatter = "benchflow: {secrets: [{name: BOARD_TOKEN, scope: verifier}]}\n"
        async with bench(package(frontmatter, board(how)), BOARD_TOKEN="t0ken-value") as it:
            await it.agent("echo weights > model.txt")
            verdict = (await it.verify()).verdict
            assert (verdict.reward if isinstance(verdict, Scored) else verdict.code) == outcome
    assert handler.seen[0]["authorization"] == "Bearer t0ken-value"


async def test_an_unreachable_scorer_leaves_the_result_pending(bench, package):
    async with bench(package(files=board("url: 'http://127.0.0.1:9/x', timeout_sec: 2"))) as it:
        await it.agent("echo weights > model.txt")
        assert (await it.verify()).verdict.code == "pending"
