"""`bench tasks show` and `bench tasks digest`."""

import hashlib
import json

import pytest

USER_TASK = """---
schema_version: "1.3"
task: {name: acme/asked}
agents:
  roles:
    solver: {agent: codex-acp}
scenes:
  - {name: work, turns: [solver]}
user: {model: scripted, stop_rule: satisfied-or-3-rounds, private_facts: {ticket: SECRET-42}}
---
Fix the ticket.
"""


def test_show_tells_what_will_run_and_what_is_asked(invoke, make_package):
    make_package()
    code, out, err = invoke("tasks", "show", "tasks/a", "--sandbox", "docker")
    assert (code, err) == (0, "")
    for shown in ("acme/a", "sha256:", "verifier/", "oracle/", "on docker", "Write /app/out.txt."):
        assert shown in out


def test_show_as_data_has_the_effective_configuration(invoke, make_package, make_split):
    make_package()
    make_split()
    native = json.loads(invoke("tasks", "show", "tasks/a", "--json")[1])
    assert native["valid"] is True
    assert native["entrypoint"] == "task.md"
    assert native["config"]["environment"]["workdir"] == "/app"
    assert native["config"]["environment"]["memory_mb"] == 2048
    assert native["prompt_plan"]["turns"][0]["prompt"] == "Write /app/out.txt."
    split = json.loads(invoke("tasks", "show", "split/a", "--json")[1])
    assert split["entrypoint"] == "legacy"
    assert split["selected_verifier_dir"] == "tests"
    assert split["config"]["environment"]["cpus"] == 2


def test_show_lists_the_prompts_of_steps(invoke, make_split):
    toml = 'schema_version = "1.3"\n[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'
    make_split(
        **{
            "task.toml": toml,
            "steps/first/instruction.md": "Begin.\n",
            "steps/second/instruction.md": "Finish.\n",
            "steps/first/tests/test.sh": "true\n",
        }
    )
    code, out, _ = invoke("tasks", "show", "split/a")
    assert code == 0
    assert "Prompt (step first)\n  Begin." in out
    assert "Prompt (step second)\n  Finish." in out


def test_private_facts_are_never_shown(invoke, make_package):
    make_package(**{"task.md": USER_TASK})
    for arguments in ((), ("--json",), ("--sandbox", "docker"), ("--sandbox", "docker", "--json")):
        code, out, err = invoke("tasks", "show", "tasks/a", *arguments)
        assert code == 0
        assert "SECRET-42" not in out + err


def test_an_invalid_package_shows_its_issues_and_ends_with_1(invoke, make_package):
    make_package(**{"task.md": "---\nnope: 1\n---\nDo it.\n"})
    code, out, _ = invoke("tasks", "show", "tasks/a", "--json")
    assert code == 1
    shown = json.loads(out)
    assert shown["valid"] is False
    assert [issue["code"] for issue in shown["issues"]] == ["unknown-key"]
    code, out, _ = invoke("tasks", "show", "tasks/a")
    assert code == 1
    assert "[unknown-key]" in out


@pytest.mark.parametrize(
    "arguments", [("tasks",), ("missing",), ("tasks/a", "--sandbox", "nope"), ("tasks/a", "tasks/b")]
)
def test_show_takes_exactly_one_package(invoke, make_package, arguments):
    make_package("tasks/a")
    make_package("tasks/b")
    code, out, err = invoke("tasks", "show", *arguments, "--json")
    assert (code, out) == (2, "")
    assert err


def test_digest_is_one_line_per_package_and_follows_the_content(invoke, make_package):
    a = make_package("tasks/a")
    make_package("tasks/b", **{"task.md": "broken"})
    code, out, err = invoke("tasks", "digest", "tasks")
    assert (code, err) == (0, "")
    lines = [line.split("  ") for line in out.splitlines()]
    assert [path for _, path in lines] == ["tasks/a", "tasks/b"]
    running = hashlib.sha256()
    for path in sorted(item.relative_to(a).as_posix() for item in a.rglob("*") if item.is_file()):
        running.update(path.encode() + b"\0" + hashlib.sha256((a / path).read_bytes()).digest())
    assert lines[0][0] == f"sha256:{running.hexdigest()}"
    (a / "task.md").write_text("changed")
    assert invoke("tasks", "digest", "tasks/a")[1].split()[0] != lines[0][0]


def test_digest_as_data(invoke, make_package):
    make_package(**{"evidence/notes.md": "Proven."})
    code, out, _ = invoke("tasks", "digest", "tasks", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["summary"] == {"total": 1, "unreadable": 0}
    [task] = document["tasks"]
    assert task["path"] == "tasks/a"
    assert task["digest"].startswith("sha256:")
    assert task["content_digest"] not in (task["digest"], None)
    shown = json.loads(invoke("tasks", "show", "tasks/a", "--json")[1])
    assert (shown["digest"], shown["content_digest"]) == (task["digest"], task["content_digest"])


def test_digest_of_nothing_is_refused(invoke, tmp_path):
    assert invoke("tasks", "digest", ".")[:2] == (2, "")
