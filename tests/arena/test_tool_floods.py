"""A participant that floods or breaks the tools all roles share: it gets errors, and the others get their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.arena.arena_packages import game_package

from benchflow.arena.peers import role_tools
from benchflow.record import read_tool_calls

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox, pytest.mark.slow]

CLIENT = """
python3 - <<'E'
import json, os, urllib.request
def raw(body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["BENCHFLOW_MCP_TOKEN"]}
    return json.load(urllib.request.urlopen(urllib.request.Request(os.environ["BENCHFLOW_MCP_URL"], body, headers)))
def call(name, **arguments):
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    return raw(json.dumps(asked).encode())["result"]["content"][0]["text"]
%s
E
"""
FLOODS = {
    "an answer without end": 'for n in range(6): said = call("put", thing=str(n) + "x" * 9000)\nprint(said)',
    "arguments without end": 'for n in range(9): said = call("nothing", thing="x" * 9000)\nprint(said)',
    "what is not JSON": (
        'nested = b\'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","arguments":%s}}\'\n'
        'print(raw(nested.replace(b"%s", b\'{"a":\' * 300 + b"1" + b"}" * 300))["error"]["code"])\n'
        'print(raw(nested.replace(b"%s", b\'{"a":NaN}\'))["error"]["code"])\n'
        'print(raw(b\'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}\')["error"]["code"])'
    ),
}
SAID = {
    "an answer without end": "error: the answer has more than 40000 bytes",
    "arguments without end": "error: the arguments of all calls have more than 60000 bytes.",
    "what is not JSON": "-32700\n-32700\n-32600",
}
BOTH = """
def play(request, status, artifact):
    said = {role: ask(url, "Use the shelf.", "game") for role, url in request["participants"].items()}
    artifact({"winner": None, "rewards": {role: 0.5 for role in said}})
"""


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_role_that_floods_the_tools_gets_errors_and_the_next_role_its_answers(
    tmp_path, play, script, monkeypatch, flood
):
    monkeypatch.setattr(role_tools, "MAX_LINE", 40_000)
    monkeypatch.setattr(role_tools, "MAX_ARGUMENTS", 60_000)
    servers = "mcp_servers: [{name: shelf, transport: stdio, command: python3, args: [-c, %s]}], network_mode"
    source = Path(__file__).with_name("market_server.py").read_text().replace('"name"] == "put"', '"name"] != "look"')
    source = source.replace("json.dumps(shelf)", 'json.dumps(shelf if params["name"] == "put" else len(shelf))')
    package = game_package(tmp_path / "game", play=BOTH)
    text = (package / "task.md").read_text().replace("{network_mode", "{" + servers % json.dumps(source))
    (package / "task.md").write_text(text)
    second = script(CLIENT % 'print(call("look"))')
    game = await play(package, script(CLIENT.replace("%s", FLOODS[flood], 1)), others={"second": second})
    assert game.why is None, game.result.error
    said = {one.sender: one.parts[0].text.strip() for one in game.messages if one.sender != "umpire"}
    assert said["first"] == SAID[flood]
    assert said["second"].isdigit()
    assert all(call.tool in ("put", "look", "nothing") for call in read_tool_calls(game.folder.a2a_tool_calls))
    assert game.folder.a2a_tool_calls.stat().st_size < 130_000
