"""What would be ignored, or kept where it must not be, is refused before anything begins, in one sentence."""

import pytest

SECRET = "sk-0123456789abcdef"


def refused(done, code=2):
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("out", ["/dev/null/x", "file/x", "file"])
def test_a_place_that_can_be_no_folder_is_refused_before_the_sandbox_starts(bench, make_package, tmp_path, out):
    (tmp_path / "file").write_text("")
    line = refused(bench("run", make_package(), "--out", out))
    assert f"--out {out} cannot be created" in line


@pytest.mark.parametrize("command", [["run", "hello"], ["eval", "run", "hello"]])
def test_an_unknown_agent_is_wrong_usage_also_for_an_unfinished_package(bench, tmp_path, command):
    assert bench("tasks", "init", "hello").returncode == 0
    line = refused(bench(*command, "--agent", "nobody"))
    assert "Unknown agent 'nobody'" in line
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("agent", ["oracle", "nop", "script:x.sh"])
@pytest.mark.parametrize("command", [["run", "tasks/a"], ["eval", "run", "tasks"]])
def test_a_model_for_an_agent_that_has_none_is_refused(bench, make_package, tmp_path, command, agent):
    make_package()
    line = refused(bench(*command, "--agent", agent, "--model", "m"))
    assert "does not use a model" in line
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("option", [["--sandbox", "zorg"], ["--sandbox", "local"], ["--base-image", "host"]])
def test_what_cubes_have_no_use_for_is_refused(bench, tmp_path, option):
    line = refused(bench("eval", "run", "cube:counter-cube", "--agent", "debug", *option))
    assert f"{option[0]} applies to packages only" in line
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ("debgu", "Unknown agent 'debgu'; agents that play cubes: debug, nop, model. Did you mean 'debug'?"),
        ("oracle", "it cannot run on gym tasks; agents that play cubes: debug, nop, model."),
    ],
)
def test_an_agent_that_cannot_play_cubes_is_refused_with_those_that_can(bench, tmp_path, agent, sentence):
    assert sentence in refused(bench("eval", "run", "cube:counter-cube", "--agent", agent))
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("spelling", [SECRET, "c2stMDEyMzQ1Njc4OWFiY2RlZg"])
def test_an_agent_that_holds_a_secret_is_refused_with_the_way_to_pass_it(bench, make_package, tmp_path, spelling):
    make_package()
    agent = f"acp:agent --key {spelling}"
    line = refused(bench("eval", "run", "tasks", "--agent", agent, env={"OPENAI_API_KEY": SECRET}))
    assert "The agent of the job contains the value of OPENAI_API_KEY" in line
    assert "benchflow.secrets" in line
    assert SECRET not in line
    assert not (tmp_path / "jobs").exists()


def test_a_secret_is_known_by_the_declaration_of_a_package_too(bench, make_package, tmp_path):
    text = "---\ntask: {name: acme/a}\nbenchflow:\n  secrets: [{name: LICENCE, scope: agent}]\n---\nDo it.\n"
    make_package(**{"task.md": text})
    env = {"LICENCE": "abcd-efgh"}
    line = refused(bench("eval", "run", "tasks", "--agent", "acp:agent abcd-efgh", env=env))
    assert "the value of LICENCE" in line
    assert not (tmp_path / "jobs").exists()
