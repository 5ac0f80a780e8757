"""`bench tasks audit`: packages, good and bad, in text and as JSON."""

import json

import pytest

EXACT = 'if [ "$(cat /app/answer.txt 2>/dev/null)" = 55 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
LAX = "if [ -e /app/answer.txt ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
QUICK = ("--family", "do-nothing", "--family", "empty-output", "--sandbox", "local")


@pytest.fixture
def make(tmp_path):
    def make(name, verifier=EXACT, **files):
        folder = tmp_path / "tasks" / name
        settings = f"task:\n  name: acme/{name}\nenvironment:\n  workdir: /app\nverifier:\n  isolation: shared\n"
        everything = {
            "task.md": f"---\n{settings}---\n\nWrite the sum to /app/answer.txt.\n",
            "verifier/test.sh": verifier,
            "oracle/solve.sh": "echo 55 > answer.txt\n",
            **files,
        }
        for path, content in everything.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)
        return folder

    return make


@pytest.mark.sandbox
def test_sound_broken_and_invalid_packages_are_reported_beside_each_other(invoke, make, tmp_path):
    make("exact")
    make("lax", LAX, **{"evidence/cheats/touch.sh": "touch answer.txt\n"})
    (make("torn") / "task.md").write_text("---\ntask: [\n---\n")
    code, out, _ = invoke("tasks", "audit", "tasks", *QUICK, "-o", "report.json", "--json")
    document = json.loads(out)
    assert code == 1
    assert json.loads((tmp_path / "report.json").read_text()) == document
    assert document["summary"] == {"total": 3, "sound": 1, "unsound": 2}
    exact, lax, torn = document["tasks"]
    assert (exact["path"], exact["name"], exact["sound"]) == ("tasks/exact", "acme/exact", True)
    assert exact["isolation"]["rung"] == "shared"
    verdicts = {item["family"]: item["verdict"] for item in lax["families"]}
    assert verdicts == {"do-nothing": "held", "empty-output": "broken", "shipped-cheats": "broken"}
    empty = next(item for item in lax["families"] if item["family"] == "empty-output")
    assert (empty["attempts"], empty["best_reward"]) == (1, 1.0)
    assert "empty file" in empty["evidence"]
    assert (torn["sound"], torn["families"]) == (False, [])
    assert torn["findings"][0]["code"] == "invalid-yaml"


JUDGED = {
    "verifier/verifier.md": "---\nverifier:\n  strategies:\n    prose: {type: llm-judge, rubric: rubric.toml}\n---\n",
    "verifier/rubric.toml": '[judge]\nmodel = "openai/m"\n[[criterion]]\nname = "right"\ndescription = "It is 55."\n',
}


@pytest.mark.sandbox
def test_a_judge_without_its_key_is_undecided_and_named_beside_what_needs_no_run(invoke, make, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    shown = {"environment/Dockerfile": "FROM debian\nCOPY solve.sh /\n", "environment/solve.sh": f"echo 55{' ' * 99}\n"}
    folder = make("judged", **JUDGED, **shown)
    (folder / "verifier" / "test.sh").unlink()
    (folder / "oracle" / "solve.sh").write_text(shown["environment/solve.sh"])
    code, out, _ = invoke("tasks", "audit", "tasks", *QUICK)
    assert code == 1
    assert out.startswith("UNDECIDED tasks/judged (acme/judged)\n")
    assert "needs the variable OPENAI_API_KEY, which is not set. [audit-undecided]" in out
    assert "[solution-exposed]" in out
    assert out.endswith("1 package audited: 0 sound, 0 unsound, 1 undecided\n")
    make("exact")
    code, out, _ = invoke("tasks", "audit", "tasks", *QUICK, "--json")
    document = json.loads(out)
    assert (code, document["summary"]) == (1, {"total": 2, "sound": 1, "unsound": 0})
    assert [task["sound"] for task in document["tasks"]] == [True, False]


@pytest.mark.sandbox
def test_an_environment_that_cannot_be_built_here_is_undecided(invoke, make):
    make("far", **{"environment/Dockerfile": "FROM registry.invalid/nothing:1\n"})
    code, out, _ = invoke("tasks", "audit", "tasks", *QUICK, "--pull", "never")
    assert (code, out.startswith("UNDECIDED tasks/far")) == (1, True)
    assert "registry.invalid/nothing:1" in out


@pytest.mark.sandbox
def test_the_text_names_what_was_done_and_the_remedy_and_counts_families(invoke, make):
    make("lax", LAX)
    make("exact")
    code, out, _ = invoke("tasks", "audit", "tasks", *QUICK, "--concurrency", "1")
    assert code == 1
    assert "UNSOUND tasks/lax (acme/lax) at 'shared'" in out
    assert "broken empty-output: It creates every output as an empty file and gets 1" in out
    assert "remedy Make the verifier check the content" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("empty-output"))
    assert row == ["empty-output", "1", "0", "1", "0"]
    assert out.splitlines()[-1] == "2 packages audited: 1 sound, 1 unsound"


def test_the_catalogue_is_listed_without_a_package(invoke):
    code, out, _ = invoke("tasks", "audit", "--list")
    assert code == 0
    assert "do-nothing\n    Does nothing" in out
    assert "Remedy: Make the verifier check" in out


def test_a_report_that_exists_is_not_overwritten(invoke, make, tmp_path):
    make("exact")
    (tmp_path / "report.json").write_text("mine")
    code, _, err = invoke("tasks", "audit", "tasks", "-o", "report.json")
    assert (code, (tmp_path / "report.json").read_text()) == (2, "mine")
    assert "already exists" in err


def test_an_unknown_family_is_refused_with_the_known_ones(invoke, make):
    make("exact")
    code, _, err = invoke("tasks", "audit", "tasks", "--family", "magic")
    assert code == 2
    assert "Unknown exploit family 'magic'" in err
