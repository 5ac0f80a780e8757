"""`bench tasks pin` and the acceptance level: evidence that is about this content and no other."""

import json

import pytest
import yaml

from benchflow.cli import main

VERIFIER_MD = """---
document_version: "0.3"
verifier:
  default_strategy: tests
  strategies:
    tests: {type: script, command: ./test.sh}
  rubric: {dimensions: {correctness: {weight: 1.0, source: tests}}}
  outputs: {reward_json: /logs/verifier/reward.json}
---
"""


@pytest.fixture
def invoke(tmp_path, monkeypatch, capfd):
    """Run `bench` in the test's folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str):
        code = main(list(arguments))
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def proven(tmp_path, evidence_files, evidence_claims):
    """A package with complete evidence, not yet pinned."""

    def make(**changes):
        folder = tmp_path / "tasks" / "a"
        frontmatter = {"task": {"name": "acme/a"}, "benchflow": {"evidence": {**evidence_claims, **changes}}}
        files = {
            "task.md": f"---\n{yaml.safe_dump(frontmatter)}---\nWrite /app/out.txt.\n",
            "oracle/solve.sh": "true\n",
            "verifier/test.sh": "true\n",
            "verifier/verifier.md": VERIFIER_MD,
            "verifier/rubrics/verifier.md": "# Correctness\n",
            **{name: json.dumps(content) for name, content in evidence_files.items()},
        }
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    return make


def acceptance(invoke) -> tuple[int, list[str]]:
    code, out, _ = invoke("tasks", "check", "tasks/a", "--level", "acceptance", "--json")
    return code, [issue["code"] for issue in json.loads(out)["tasks"][0]["issues"]]


def test_pinning_makes_evidence_acceptable_until_something_changes(invoke, proven):
    folder = proven(pins="evidence/pins.json")
    code, issues = acceptance(invoke)
    assert code == 1
    assert set(issues) == {"pins-missing", "evidence-unpinned"}
    code, out, err = invoke("tasks", "pin", "tasks/a")
    assert (code, err) == (0, "")
    assert "evidence/pins.json" in out
    assert acceptance(invoke) == (0, [])
    written = (folder / "evidence/pins.json").read_text()
    (folder / "verifier/test.sh").write_text("easier\n")
    assert acceptance(invoke) == (1, ["pin-mismatch"])
    assert acceptance(invoke) == (1, ["pin-mismatch"])
    assert (folder / "evidence/pins.json").read_text() == written
    assert invoke("tasks", "pin", "tasks/a")[0] == 0
    assert acceptance(invoke) == (0, [])
    (folder / "task.md").write_text((folder / "task.md").read_text() + "\nMore.\n")
    assert acceptance(invoke) == (1, ["pin-mismatch"])


def test_a_shared_profile_is_pinned_too(invoke, proven, tmp_path):
    folder = proven(artifacts=[{"path": "evidence/pins.json"}])
    shared = tmp_path / "tasks" / "world.yaml"
    shared.write_text("cpus: 1\n")
    document = (folder / "task.md").read_text().replace("---\n", "---\nenvironment-profile: ../world.yaml\n", 1)
    (folder / "task.md").write_text(document)
    (folder / "evidence/pins.json").write_text("{}")
    assert invoke("tasks", "pin", "tasks/a")[0] == 0
    assert acceptance(invoke) == (0, [])
    shared.write_text("cpus: 8\n")
    assert acceptance(invoke) == (1, ["pin-mismatch"])


def test_inconsistent_evidence_is_not_pinned(invoke, proven):
    folder = proven()
    (folder / "evidence/oracle.json").write_text('{"reward": 0.2}')
    code, out, _ = invoke("tasks", "pin", "tasks/a", "--json")
    assert code == 1
    document = json.loads(out)
    assert document["summary"] == {"total": 1, "pinned": 0}
    assert "evidence-disagrees" in [issue["code"] for issue in document["tasks"][0]["issues"]]
    assert not (folder / "evidence/pins.json").exists()


def test_a_package_without_evidence_has_nothing_to_pin(invoke, proven):
    document = proven() / "task.md"
    document.write_text("---\ntask: {name: acme/a}\n---\nWrite it.\n")
    code, out, _ = invoke("tasks", "pin", "tasks")
    assert code == 1
    assert "Not pinned: tasks/a" in out
    assert "[evidence-missing]" in out


def test_a_digest_declared_in_task_md_must_hold(invoke, proven):
    proven(artifacts=[{"path": "evidence/oracle.json", "sha256": "0" * 64}])
    assert invoke("tasks", "pin", "tasks/a")[0] == 1


def test_issues_of_evidence_know_their_line(invoke, proven):
    folder = proven(verifier={"reruns": 1, "flake_rate": 0.0, "report": "evidence/stability.json"})
    code, out, _ = invoke("tasks", "check", "tasks/a", "--level", "acceptance", "--json")
    assert code == 1
    issue = next(item for item in json.loads(out)["tasks"][0]["issues"] if item["code"] == "evidence-insufficient")
    assert issue["path"] == "benchflow.evidence.verifier.reruns"
    assert "reruns: 1" in (folder / "task.md").read_text().splitlines()[issue["line"] - 1]


def test_problems_of_evidence_files_have_lines(invoke, proven, evidence_claims):
    folder = proven()
    assert invoke("tasks", "pin", "tasks/a")[0] == 0
    review, report = evidence_claims["review"]["artifact"], evidence_claims["verifier"]["report"]
    (folder / review).write_text('{\n "kind": "acceptance-review",\n "anti_cheat": "failed"\n}\n')
    (folder / report).write_text('{\n "kind":\n}\n')
    _, out, _ = invoke("tasks", "check", "tasks/a", "--level", "acceptance", "--json")
    found = {(i["file"], i["path"]): i["line"] for i in json.loads(out)["tasks"][0]["issues"]}
    assert found[review, "anti_cheat"] == 3
    assert found[report, ""] == 3
    pins = (folder / "evidence/pins.json").read_text().splitlines()
    (written,) = [number for number, line in enumerate(pins, 1) if review in line]
    assert found["evidence/pins.json", f"files.{review}"] == written
