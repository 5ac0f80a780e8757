"""An ACP agent of a few lines of JSON, which misbehaves as its arguments say. Needs nothing but Python.

Names of functions below are what it can be told to do: `at_start_*` before it listens, `in_turn_*` for each prompt.
"""

import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

HOW = [word.replace("-", "_") for word in sys.argv[1:]]
NUMBERS = count(1)
SIGNED_IN = Path("/tmp/signed-in")


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(**fields):
    send({"method": "session/update", "params": {"sessionId": "s", "update": fields}})


def say(text):
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def receive():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def ask(method, **params):
    """A request to the client, and its answer."""
    name = f"r{next(NUMBERS)}"
    send({"id": name, "method": method, "params": {"sessionId": "s", **params}})
    while True:
        message = receive()
        if message.get("id") == name:
            return message.get("result", message.get("error"))


def at_start_exit():
    print("no key found", file=sys.stderr)
    sys.exit(3)


def at_start_noise():
    print("Welcome to the agent!\n[info] starting", flush=True)


def at_start_only_noise():
    print("Welcome to the agent!", flush=True)
    time.sleep(1000)


def at_start_flood():
    while True:
        sys.stdout.write("y" * 65536 + "\n")


def at_start_long_line():
    while True:
        sys.stdout.write("{" + "y" * 65536)


def at_start_silent():
    time.sleep(1000)


def in_turn_exit_in_turn(text):
    say("so long")
    print("out of memory", file=sys.stderr, flush=True)
    sys.exit(9)


def in_turn_broken_in_turn(text):
    sys.stdout.write('{"jsonrpc": "2.0", "method": \n')
    sys.stdout.flush()
    time.sleep(1000)


def in_turn_no_message(text):
    print('{"jsonrpc": "2.0"}', flush=True)
    time.sleep(1000)


def in_turn_close_stdout(text):
    os.close(1)
    time.sleep(1000)


def in_turn_flood_updates(text):
    while True:
        say("x" * 1000000)


def in_turn_flood_requests(text):
    for number in range(20000):
        send({"id": number, "method": "nonsense/method", "params": {}})


def in_turn_hang(text):
    say("I will think about it")
    time.sleep(1000)


def in_turn_hang_in_tool(text):
    update(sessionUpdate="tool_call", toolCallId="t", title="work", kind="execute", status="in_progress")
    time.sleep(float(text))
    update(sessionUpdate="tool_call_update", toolCallId="t", status="completed", rawOutput="done")


def in_turn_children(text):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    say("started")
    time.sleep(float(text))


def in_turn_many_tools(text):
    for number in range(50):
        update(sessionUpdate="tool_call", toolCallId=f"t{number}", title="work", status="completed")
        time.sleep(0.05)


def in_turn_announced_tools(text):
    """Calls are announced before their input is known; the second is never begun, the third is asked for."""
    for call in ("a", "b", "c"):
        update(sessionUpdate="tool_call", toolCallId=call, title="bash", kind="execute", status="pending", rawInput={})
    update(sessionUpdate="tool_call_update", toolCallId="a", title="list files", rawInput={"command": "ls"})
    update(sessionUpdate="tool_call_update", toolCallId="a", status="in_progress")
    update(sessionUpdate="tool_call_update", toolCallId="a", status="completed", rawOutput="x")
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    asked = {"toolCallId": "c", "title": "rm", "rawInput": {"command": "rm x"}}
    ask("session/request_permission", sessionId="s", toolCall=asked, options=options)
    update(sessionUpdate="tool_call_update", toolCallId="c", status="completed", rawOutput="y")


def in_turn_costly(text):
    update(sessionUpdate="usage_update", used=500, size=1000, cost={"amount": 0.75, "currency": "USD"})
    time.sleep(float(text or 0))


def in_turn_odd_updates(text):
    update(sessionUpdate="from_the_future", data=1)
    send({"method": "session/update", "params": {"sessionId": "s"}})
    send({"method": "session/update", "params": [1]})
    send({"method": "what/ever"})
    shown = {"type": "content", "content": {"type": "text", "text": "seen"}}
    diff = {"type": "diff", "path": "/app/a", "newText": "x"}
    update(sessionUpdate="tool_call_update", toolCallId="late", status="completed", content=[shown, diff])
    update(sessionUpdate="plan", entries=[{"content": "one", "priority": "high", "status": "pending"}])


def in_turn_requests(text):
    say(json.dumps([ask(item["method"], **item["params"]) for item in json.loads(text)]))


def in_turn_permission(text):
    say(json.dumps(ask("session/request_permission", **json.loads(text))))


def in_turn_env(text):
    say(json.dumps(dict(os.environ)))


def select(name, category, current, options):
    fields = {"id": name, "name": name, "type": "select", "category": category}
    return {**fields, "currentValue": current, "options": options}


def answer_initialize(params):
    if "not_an_object" in HOW:
        return {"result": "hello"}
    capabilities = {"mcpCapabilities": {"http": "mcp" in HOW}}
    return {"result": {"protocolVersion": 99 if "version" in HOW else 1, "agentCapabilities": capabilities}}


def answer_session_new(params):
    if "auth" in HOW and not SIGNED_IN.exists():
        return {"error": {"code": -32000, "message": "Authentication required"}}
    result = {"sessionId": "s"}
    if "config" in HOW:
        models = [{"value": "small", "name": "Small"}, {"value": "acme/large", "name": "Large"}]
        efforts = [{"group": "g", "name": "G", "options": [{"value": "high", "name": "High"}]}]
        result["configOptions"] = [select("m", "model", "small", models), select("e", "thought_level", "low", efforts)]
    if "models" in HOW:
        result["models"] = {"currentModelId": "a", "availableModels": [{"modelId": "a"}, {"modelId": "b"}]}
    if "mcp" in HOW:
        print(json.dumps(params["mcpServers"]), file=sys.stderr, flush=True)
    return {"result": result}


def answer_authenticate(params):
    SIGNED_IN.write_text(params["methodId"])
    return {"result": {}}


def answer_setting(params):
    print(json.dumps(params), file=sys.stderr, flush=True)
    return {"result": {}}


def answer_session_prompt(params):
    for name in HOW:
        globals().get(f"in_turn_{name}", lambda text: None)(params["prompt"][0]["text"])
    if "error" in HOW:
        return {"error": {"code": -32603, "message": "model overloaded", "data": {"details": "529"}}}
    usage = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10, "cachedReadTokens": 2}
    return {"result": {"stopReason": "bored" if "odd_stop" in HOW else "end_turn", "usage": usage}}


ANSWERS = {
    "initialize": answer_initialize,
    "authenticate": answer_authenticate,
    "session/new": answer_session_new,
    "session/prompt": answer_session_prompt,
    "session/set_config_option": answer_setting,
    "session/set_model": answer_setting,
}

for word in HOW:
    globals().get(f"at_start_{word}", lambda: None)()
while True:
    request = receive()
    if request.get("method") in ANSWERS:
        send({"id": request["id"], **ANSWERS[request["method"]](request.get("params") or {})})
