"""A service that is down when work is verified: by accident it is unscored, by the agent it is no way out."""

from __future__ import annotations

import pytest

from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.protocol import Image, SandboxSpec
from benchflow.sandbox.task_policy import agent_users

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

MANIFEST = """\
    [environment]
    name = "web"
    base_image = "host-only"
    owns_lifecycle = false
    [[environment.services]]
    name = "web"
    command = '''{command}'''
    port = 8123
    """
SERVE = "python3 -m http.server 8123 --directory /srv"
MORTAL = f"{SERVE} & while [ ! -e /tmp/end ]; do sleep 0.05; done; kill $!; exit %d"
ANSWERS = """\
    #!/bin/sh
    if curl -sf http://127.0.0.1:8123/ >/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
    """
KILL = "pkill -KILL -f '[h]ttp.server'; while pgrep -f '[h]ttp.server' >/dev/null; do sleep 0.05; done"
GONE = "until [ -e /var/log/benchflow-services/web/exit ]; do sleep 0.05; done"


@pytest.fixture
def served(package):
    def make(frontmatter: str = "", command: str = SERVE, script: str = ANSWERS):
        text = f"benchflow:\n  environment: {{manifest: environment/environment.toml}}\n{frontmatter}"
        return package(
            text, {"environment/environment.toml": MANIFEST.format(command=command), "verifier/test.sh": script}
        )

    return make


@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_a_service_that_dies_leaves_the_work_unscored(bench, served, mode):
    folder = served(f"verifier: {{environment_mode: {mode}}}\n", MORTAL % 3)
    async with bench(folder, base_image="host") as it:
        await it.agent("touch /tmp/end")
        await it.agent(GONE, user="root")
        verdict = (await it.verify()).verdict
    assert (verdict.status, verdict.category, verdict.code) == ("unscored", "environment", "service-failed")
    assert "web exited with code 3" in verdict.reason


@pytest.mark.parametrize(
    "frontmatter",
    ["agent: {user: root}\n", "verifier: {hardening: {keep_processes: true}}\n"],
    ids=["root", "declared"],
)
async def test_an_agent_that_may_end_services_does_not_get_out_of_its_score(bench, served, frontmatter):
    async with bench(served(frontmatter), base_image="host") as it:
        await it.agent(KILL, user="root")
        found = await it.verify()
    assert found.verdict.reward == 0
    notes = [issue.message for issue in found.diagnostics if issue.code == "service-ended"]
    assert len(notes) == 1
    assert "The service web was killed." in notes[0]


async def test_a_service_that_has_done_its_work_is_no_trouble_while_all_ports_answer(bench, served):
    command = f"setsid {SERVE} >/dev/null 2>&1 & while [ ! -e /tmp/end ]; do sleep 0.05; done"
    async with bench(served(command=command), base_image="host") as it:
        await it.agent("touch /tmp/end")
        await it.agent(GONE, user="root")
        found = await it.verify()
        assert found.verdict.reward == 1, found
        await it.agent(KILL, user="root")
        verdict = (await it.verify()).verdict
        assert (verdict.category, verdict.code) == ("environment", "service-failed")


ENDS_WHEN_ASKED = (
    f"{SERVE} & python3 -c 'import socket; socket.create_server((\"127.0.0.1\", 8124)).accept()'; kill $!; exit 3"
)
END_IT = "curl -s http://127.0.0.1:8124/; while curl -sf http://127.0.0.1:8123/ >/dev/null; do sleep 0.05; done"


async def test_a_service_that_ends_during_verification_is_noted(bench, served):
    async with bench(served(command=ENDS_WHEN_ASKED, script=f"{ANSWERS}    {END_IT}\n"), base_image="host") as it:
        found = await it.verify()
    assert found.verdict.reward == 1
    assert "service-ended" in [issue.code for issue in found.diagnostics]


async def test_services_of_an_environment_are_verified_from_a_box_of_their_verifier(bench, served):
    script = ANSWERS + "    pgrep -f '[h]ttp.server' && echo 0 > /logs/verifier/reward.txt; true\n"
    async with bench(served(script=script), base_image="host") as it:
        await it.agent("setsid sh -c 'until cat /verifier/test.sh > /tmp/seen; do sleep 0.01; done' 2>/dev/null &")
        found = await it.verify(soft=True)
        assert (found.verdict.reward, found.isolation.rung, found.diagnostics) == (1, "shared", ())
        await it.agent("[ ! -s /tmp/seen ]")
        assert (await it.verify()).verdict.reward == 1


async def test_everybody_whom_an_agent_runs_as_is_known(bench, package):
    frontmatter = "steps: [{name: one}, {name: two, agent: {user: nobody}}]\n"
    files = {
        "steps/one/instruction.md": "A.",
        "steps/one/verifier/test.sh": "x",
        "steps/two/instruction.md": "B.",
        "steps/two/verifier/test.sh": "x",
    }
    async with bench(package(frontmatter, files)) as it:
        view = it.environment.preparation.view
        assert agent_users(it.sandbox.spec, view) == ("agent", "nobody")
        it.sandbox.spec = SandboxSpec(image=Image("i", "i", user="node"))
        assert agent_users(it.sandbox.spec, view) == ("node", "nobody")
        it.sandbox.spec = SandboxSpec(image=Image("i", "i", user="node"), user="0:0")
        assert is_root(agent_users(it.sandbox.spec, view)[0])
