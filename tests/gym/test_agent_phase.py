"""A gym task gives its driver the agent's phase of a rollout: network, secrets, skills, tools, prompt."""

import pytest

from benchflow.errors import EnvironmentFailure
from cube.core import Action

CHECK = "echo 1 > /logs/verifier/reward.txt\n"
LINKS = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"


@pytest.fixture
def package(make_package):
    def make(frontmatter):
        text = f"---\ntask: {{name: acme/phase}}\n{frontmatter}---\nDo it.\n"
        return make_package({"task.md": text, "verifier/test.sh": CHECK})

    return make


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_the_network_is_the_agents_and_not_the_environments(gym, package):
    one = gym(package("environment: {network_mode: public}\nagent: {network_mode: no-network}\n"))
    one.reset()
    assert one.bash(LINKS) == "lo\n"
    copy = one.task.fork()
    try:
        output = copy.step(Action(name="bash", arguments={"command": LINKS}))
        assert output.obs.contents[0].data["stdout"] == "lo\n"
    finally:
        copy.close()


def test_secrets_are_there_in_their_scope(gym, package, monkeypatch):
    scopes = ("environment", "agent", "verifier", "oracle")
    for scope in scopes:
        monkeypatch.setenv(f"KEY_{scope.upper()}", f"value-of-{scope}")
    declared = ", ".join(f"{{name: KEY_{scope.upper()}, scope: {scope}}}" for scope in scopes)
    one = gym(package(f"benchflow: {{secrets: [{declared}]}}\n"))
    one.reset()
    assert one.bash("env | grep ^KEY_ | sort") == "KEY_AGENT=value-of-agent\nKEY_ENVIRONMENT=value-of-environment\n"


def test_a_secret_that_is_required_and_missing_is_told_before_anything_starts(gym, package):
    one = gym(package("benchflow: {secrets: [{name: NOT_SET_ANYWHERE, scope: agent}]}\n"))
    with pytest.raises(EnvironmentFailure, match="NOT_SET_ANYWHERE"):
        one.reset()
    assert one.task.get_status() == "not started"


@pytest.mark.parametrize(("access", "seen"), [("none", "0\n"), ("installed", "1\n")])
@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_skills_that_are_not_allowed_are_not_there(gym, package, access, seen):
    one = gym(
        package(
            f"environment: {{skills_dir: /usr/share/doc}}\nbenchflow: {{agent_policy: {{skill_access: {access}}}}}\n"
        )
    )
    one.reset()
    command = "ls -A /usr/share/doc 2>/dev/null | head -n 1 | wc -l"
    assert one.bash(command) == seen


def test_forbidden_tools_are_neither_offered_nor_run(gym, package):
    one = gym(package("benchflow: {agent_policy: {forbidden_tools: [WriteFile]}}\n"))
    one.reset()
    assert one.actions() == {"bash", "read_file", "edit_file"}
    output = one.act("write_file", path="a.txt", text="x")
    assert (output.obs.to_markdown(), output.done) == ("The package forbids the action 'write_file'.", False)
    assert one.bash("ls a.txt 2>/dev/null; true") == ""


def test_the_instruction_is_in_its_place(gym, package):
    one = gym(package(""))
    one.reset()
    assert one.bash("cat /instruction.md") == "Do it.\n"
