"""Scenario files become packages and packages scenarios; what is lost on the way is said, and secrets stay apart."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from benchflow.cli import main
from benchflow.task import load_package
from benchflow.task.interop.scenarios.scenario_file import read_scenario, without_place

EXAMPLES = Path(__file__).parents[3] / "examples" / "packages"
SCENARIO = """\
[green_agent]
endpoint = "http://127.0.0.1:9009"
cmd = "python game/judge.py --host 127.0.0.1 --port=9009 --topic 'a b' --card-url http://x"

[[participants]]
role = "pro"
endpoint = "http://127.0.0.1:9019"
cmd = "python game/talker.py --port 9019 --loud"

[[participants]]
role = "con"
endpoint = "http://127.0.0.1:9018"

[config]
rounds = 3
topics = ["one", "two"]
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "game").mkdir()
    for name in ("judge", "answers", "talker"):
        (tmp_path / f"game/{name}.py").write_text(f"print({name!r})\n")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path / "scenario.toml"


def test_a_scenario_becomes_a_package_whose_assessor_is_the_green_agent(scenario, tmp_path, capsys):
    assert main(["tasks", "import-scenario", str(scenario), str(tmp_path / "out"), "--json"]) == 0
    losses = {loss["path"]: loss for loss in json.loads(capsys.readouterr().out)["losses"]}
    package = load_package(tmp_path / "out", sandbox="local")
    assert package.issues == ()
    assert package.runtime_issues == ()
    strategy = package.verifier_document.selected
    assert strategy.agent == "a2a:python game/judge.py --topic 'a b'"
    assert strategy.config == {"rounds": 3, "topics": ["one", "two"]}
    assert package.document.namespace.interaction.participants == ("pro", "con")
    assert package.document.roles["pro"].agent == "a2a:python game/talker.py --loud"
    assert package.document.roles["con"].agent == "nop"
    assert "--participant con=AGENT|URL" in losses["participants[1].cmd"]["reason"]
    assert losses["green_agent.endpoint"]["severity"] == "warning"
    assert losses.keys() >= {"environment/Dockerfile", "participants[0].endpoint", "participants[1].endpoint"}


def test_the_code_of_the_assessor_is_in_no_participants_box(scenario, tmp_path):
    main(["tasks", "import-scenario", str(scenario), str(tmp_path / "out")])
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.py")}
    assert {name for name in names if name.startswith("environment/")} == {"environment/participants/game/talker.py"}
    assert names >= {"verifier/game/judge.py", "verifier/game/answers.py"}


def test_a_scenario_survives_the_way_in_and_out(scenario, tmp_path, capsys):
    main(["tasks", "import-scenario", str(scenario), str(tmp_path / "out")])
    capsys.readouterr()
    assert (
        main(["tasks", "export", str(tmp_path / "out"), str(tmp_path / "back"), "--target", "scenario", "--json"]) == 0
    )
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["status"] == "degraded"
    assert "agents.roles.con.agent" in {loss["path"] for loss in report["losses"]}
    before, after = (read_scenario(path / "scenario.toml")[0] for path in (tmp_path, tmp_path / "back"))
    assert after.config == before.config
    assert [each.role for each in after.participants] == ["pro", "con"]
    assert without_place(after.participants[0].cmd) == without_place(before.participants[0].cmd)
    assert after.participants[1].cmd is None
    shell, option, inner = shlex.split(after.green_agent.cmd)
    assert (shell, option) == ("sh", "-c")
    assert inner.startswith("cd green_agent && exec python game/judge.py --topic 'a b' --host 127.0.0.1 --port ")
    assert (tmp_path / "back/green_agent/game/judge.py").is_file()
    ports = [each.endpoint for each in (after.green_agent, *after.participants)]
    assert len(set(ports)) == 3


def test_a_built_in_assessor_is_served_by_the_scenario(tmp_path, capsys):
    source = EXAMPLES / "haggle-arena"
    assert main(["tasks", "export", str(source), str(tmp_path / "out"), "--target", "scenario"]) == 0
    made = tomllib.loads((tmp_path / "out/scenario.toml").read_text())
    assert made["green_agent"]["cmd"] == "bench serve a2a package --host 127.0.0.1 --port 9009 --no-token --path /"
    assert load_package(tmp_path / "out/package").digest == load_package(source).digest
    assert [each["role"] for each in made["participants"]] == ["buyer", "seller"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[green_agent]\ncmd = 'x'\n", None, "participants is required"),
        ("[green_agent]\ncmd = 'x'\n[[participants]]\nrole = 'a b'\n", 4, "participants[0].role must be a name"),
        (SCENARIO.replace('"con"', '"pro"'), 11, "which another participant has"),
        (SCENARIO.replace("http://127.0.0.1:9009", "nowhere"), 2, "must be an http or https URL"),
        (SCENARIO.replace("'a b'", "'a b"), 3, "cannot be split into words"),
        ("x = ?\n", 1, "not valid TOML"),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_line_and_nothing_is_written(text, line, words, tmp_path, capsys):
    (tmp_path / "scenario.toml").write_text(text)
    assert main(["tasks", "import-scenario", str(tmp_path / "scenario.toml"), str(tmp_path / "out")]) != 0
    told = capsys.readouterr().err
    assert words in told
    if line is not None:
        assert f":{line}" in told or f"line {line}" in told
    assert not (tmp_path / "out").exists()


def test_only_an_arena_can_be_a_scenario(tmp_path, capsys):
    source = EXAMPLES / "count-words"
    assert main(["tasks", "export", str(source), str(tmp_path / "out"), "--target", "scenario"]) == 1
    assert "only an arena can be a scenario" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_program_outside_the_scenario_is_never_copied(scenario, tmp_path):
    outside = tmp_path / "secret.py"
    outside.write_text("x")
    inner = tmp_path / "game"
    text = SCENARIO.replace("game/judge.py", "../secret.py").replace("game/talker.py", str(outside))
    (inner / "scenario.toml").write_text(text)
    main(["tasks", "import-scenario", str(inner / "scenario.toml"), str(tmp_path / "out")])
    assert list((tmp_path / "out").rglob("*.py")) == []
