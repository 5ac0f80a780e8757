"""A package as a served gym task: an agent solves it over MCP, the harness scores it, and nothing stays behind."""

import os
import signal
import time
from pathlib import Path

import anyio
import pytest

from benchflow.gym import PackageBenchmarkConfig
from cube.client import TaskClient, UnscoredError
from cube.server import make_task_rpc_server
from mcp_players import mcp_player

EXAMPLES = Path(__file__).parents[2] / "examples" / "packages"
pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.xdist_group("gym")]


def served(folder):
    (config,) = PackageBenchmarkConfig(paths=[str(folder)], sandbox="local", base_image="host").get_task_configs()
    return make_task_rpc_server(config)[0]


def play(address, *calls):
    async def drive():
        async with mcp_player(address.agent_url, address.agent_token) as client:
            return client.instructions, [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(drive)


def test_an_agent_solves_a_package_over_mcp_and_the_harness_scores_it():
    with served(EXAMPLES / "rotate-logs") as server:
        address = server.address
        with TaskClient(address.url, token=address.token, timeout=120) as harness:
            prompt, _ = harness.reset()
            assert harness.evaluate()[0] == 0.0
            solution = harness.privileged_info().data["oracle"]["solve.sh"]
            calls = [("bash", {"command": "ls -d /verifier /oracle"}), ("next_step", {})]
            instructions, (hidden, refused) = play(address, *calls)
            assert prompt.to_markdown() in instructions
            assert hidden.structured_content["exit_code"] != 0
            assert (refused.is_error, "is not available" in refused.content[0].text) == (True, True)
            _, (_, last) = play(address, ("bash", {"command": solution}), ("final_step", {}))
            assert last.content[-1].text.startswith("The episode is over: the agent stopped.")
            assert harness.episode()["state"] == "over"
            assert harness.evaluate()[0] == 1.0
            harness.reset()
            assert harness.evaluate()[0] == 0.0


def test_a_package_without_a_score_is_null_with_its_category(make_package):
    folder = make_package(
        {
            "task.md": "---\nschema_version: '1.3'\ntask: {name: t/broken}\n---\nDo it.\n",
            "verifier/test.sh": "#!/bin/sh\nexit 1\n",
        }
    )
    with served(folder) as server, TaskClient(server.address.url, token=server.address.token, timeout=120) as harness:
        harness.reset()
        with pytest.raises(UnscoredError) as caught:
            harness.evaluate()
    assert (caught.value.unscored["category"], caught.value.unscored["code"]) == ("verifier", "reward-missing")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_in_the_middle_of_an_action_leaves_no_process(number):
    with served(EXAMPLES / "rotate-logs") as server:
        address = server.address
        with TaskClient(address.url, token=address.token, timeout=120) as harness:
            harness.reset()
        with TaskClient(address.url, token=address.token, timeout=2) as harness:
            mark = f"served-{os.getpid()}-{number.name}"
            with pytest.raises(Exception, match="timed out"):
                harness.rpc("cube/step", name="bash", arguments={"command": f"exec -a {mark} sleep 300"})
        assert named(mark)
        os.kill(server.pid, number)
        for _ in range(300):
            if not server.is_alive() and not named(mark):
                break
            time.sleep(0.05)
        assert not server.is_alive()
        assert named(mark) == []


def named(mark):
    """The processes of this machine with that name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(mark.encode() + b"\0"):
                found.append(folder.name)
        except OSError:
            continue
    return found
