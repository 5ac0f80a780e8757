"""Choices that an agent offered are also tried the other way, on forks; confirmations fail closed."""

import pytest

from benchflow.agents.protocol import PermissionOption, PermissionRequest
from benchflow.rollout.drivers.turns import Gatekeeper

pytestmark = pytest.mark.anyio

OFFLINE = "environment: {network_mode: no-network}\n"
NUDGED = (
    OFFLINE + "user: {model: scripted, private_facts: {some_word: x}}\nbenchflow:\n  nudges: {branchable: true, %s}\n"
)
FORKED = NUDGED % "branch_execution: forked-snapshot, confirmation_policy: human"
ALLOW = PermissionOption("yes-1", "allow_once", "Allow")
ALWAYS = PermissionOption("yes-2", "allow_always", "Always")
REJECT = PermissionOption("no-1", "reject_once", "Reject")


async def ask(context, title="write the answer", options=(ALLOW, REJECT)):
    return await context.ask(PermissionRequest(title, options))


async def write_when_allowed(context):
    answer = await ask(context)
    return f"echo {'done' if answer == ALLOW.id else 'refused'} >> answer.txt"


async def test_without_a_handler_a_human_confirmation_is_a_refusal(run, make_package):
    package = make_package(NUDGED % "confirmation_policy: {destructive_actions: human}")
    assert (await run(package, commands=[write_when_allowed])).reward == 0.0


async def test_a_handler_of_the_caller_is_asked(run, make_package):
    asked = []

    async def allow(request):
        asked.append((request.title, [(option.id, option.kind) for option in request.options]))
        return "yes-1"

    package = make_package(NUDGED % "confirmation_policy: human")
    assert (await run(package, commands=[write_when_allowed], on_ask_user=allow)).reward == 1.0
    assert asked == [("write the answer", [("yes-1", "allow_once"), ("no-1", "reject_once")])]


async def raises(request):
    raise RuntimeError("the terminal is gone")


async def makes_up(request):
    return "yes-99"


async def says_nothing(request):
    return None


@pytest.mark.parametrize("handler", [raises, makes_up, says_nothing])
async def test_a_handler_that_does_not_clearly_allow_refuses(handler):
    gatekeeper = Gatekeeper(handler)
    assert await gatekeeper(PermissionRequest("x", (ALLOW, REJECT))) == "no-1"
    assert await gatekeeper(PermissionRequest("x", (ALLOW, ALWAYS))) is None
    assert gatekeeper.active()


async def test_agents_without_policy_and_handler_are_not_made_to_ask(run, make_package, new_script):
    script = new_script("true")
    await run(make_package(OFFLINE), script=script)
    assert script.contexts[0].ask is None


async def test_every_option_that_was_not_taken_is_a_branch(run, make_package, tmp_path, new_script):
    script = new_script(write_when_allowed)
    result = await run(make_package(FORKED), script=script)
    assert result.reward == 0.0
    taken, branch = sorted(result.to_dict()["branches"], key=lambda node: node["status"] != "taken")
    assert (taken["option"], taken["parent"]) == ({"id": "no-1", "kind": "reject_once"}, "main")
    assert (branch["option"]["kind"], branch["status"], branch["reward"]) == ("allow_once", "scored", 1.0)
    assert (tmp_path / "out" / "branches" / branch["id"] / "verifier" / "reward.txt").read_text().strip() == "1.0"
    assert script.contexts[0].sandbox is not script.contexts[1].sandbox
    assert script.closed == 2


async def test_a_branch_begins_with_the_state_before_its_turn_and_goes_on(run, make_package, new_script):
    frontmatter = FORKED.replace(
        "environment:",
        (
            "agents: {roles: {a: {agent: shell}}}\n"
            "scenes: [{name: s, turns: [a, {role: a, prompt: Second.}]}]\nenvironment:"
        ),
    )

    async def first(context):
        return f"echo 1-{await ask(context, 'one')} >> log.txt"

    async def second(context):
        return "echo 2 >> log.txt; if grep -q 1-yes-1 log.txt; then tail -n1 log.txt; echo done > answer.txt; fi"

    turns = {"Second.": second}

    async def play(context):
        prompt = script.prompts[-1][1]
        return await turns.get(prompt, first)(context)

    script = new_script(play)
    result = await run(make_package(frontmatter), script=script)
    assert result.reward == 0.0
    branch = next(node for node in result.to_dict()["branches"] if node["status"] == "scored")
    assert (branch["round"], branch["request"], branch["reward"]) == (0, "one", 1.0)
    assert len(script.prompts) == 4


async def test_branches_leave_branches_up_to_the_limit(run, make_package, new_script):
    async def twice(context):
        answers = [await ask(context, "first"), await ask(context, "second")]
        return f"echo {'done' if answers == ['yes-1', 'yes-1'] else answers} > answer.txt"

    package = make_package(FORKED)
    everything = await run(package, commands=[twice])
    nodes = {node["id"]: node for node in everything.to_dict()["branches"]}
    ran = [node for node in nodes.values() if node["status"] == "scored"]
    assert len(ran) == 3
    best = next(node for node in ran if node["reward"] == 1.0)
    assert (best["request"], best["option"]["id"]) == ("second", "yes-1")
    assert nodes[best["parent"]]["request"] == "first"
    limited = await run(package, commands=[twice], max_branches=1, out="limited")
    assert [node["status"] for node in limited.to_dict()["branches"]].count("scored") == 1
    assert "not-run" in [node["status"] for node in limited.to_dict()["branches"]]


async def test_a_branch_that_fails_does_not_touch_the_main_line(run, make_package):
    async def fragile(context):
        if await ask(context) == ALLOW.id:
            raise RuntimeError("lost")
        return "echo done > answer.txt"

    result = await run(make_package(FORKED), commands=[fragile])
    assert result.reward == 1.0
    failed = next(node for node in result.to_dict()["branches"] if node["status"] == "unscored")
    assert (failed["error"]["category"], failed["error"]["code"]) == ("agent", "crashed")
