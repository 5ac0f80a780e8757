"""An ACP agent of a few lines of JSON, which misbehaves as its arguments say. Needs nothing but Python."""

import json
import os
import sys
import time

how = set(sys.argv[1:])
asked = 0


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(**fields):
    send({"method": "session/update", "params": {"sessionId": "s", "update": fields}})


def say(text):
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def ask(method, **params):
    """A request to the client, and its answer."""
    global asked
    asked += 1
    send({"id": f"r{asked}", "method": method, "params": {"sessionId": "s", **params}})
    while True:
        message = receive()
        if message.get("id") == f"r{asked}":
            return message.get("result", message.get("error"))


def receive():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def prompt(request, text):
    if "exit-in-turn" in how:
        say("so long")
        print("out of memory", file=sys.stderr, flush=True)
        sys.exit(9)
    if "broken-in-turn" in how:
        sys.stdout.write('{"jsonrpc": "2.0", "method": \n')
        sys.stdout.flush()
        time.sleep(1000)
    if "close-stdout" in how:
        os.close(1)
        time.sleep(1000)
    if "flood-updates" in how:
        while True:
            say("x" * 1000000)
    if "flood-requests" in how:
        for number in range(20000):
            send({"id": number, "method": "nonsense/method", "params": {}})
    if "hang" in how:
        say("I will think about it")
        time.sleep(1000)
    if "hang-in-tool" in how:
        update(sessionUpdate="tool_call", toolCallId="t", title="work", kind="execute", status="in_progress")
        time.sleep(float(text))
        update(sessionUpdate="tool_call_update", toolCallId="t", status="completed", rawOutput="done")
    if "children" in how:
        import subprocess

        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        say("started")
        time.sleep(float(text))
    if "error" in how:
        send({"id": request["id"], "error": {"code": -32603, "message": "model overloaded", "data": {"details": "529"}}})
        return
    if "odd-stop" in how:
        send({"id": request["id"], "result": {"stopReason": "bored"}})
        return
    if "many-tools" in how:
        for number in range(50):
            update(sessionUpdate="tool_call", toolCallId=f"t{number}", title="work", status="completed")
            time.sleep(0.05)
    if "costly" in how:
        update(sessionUpdate="usage_update", used=500, size=1000, cost={"amount": 0.75, "currency": "USD"})
        time.sleep(float(text or 0))
    if "odd-updates" in how:
        update(sessionUpdate="from_the_future", data=1)
        send({"method": "session/update", "params": {"sessionId": "s"}})
        send({"method": "session/update", "params": [1]})
        send({"method": "what/ever"})
        update(sessionUpdate="tool_call_update", toolCallId="late", status="completed", content=[
            {"type": "content", "content": {"type": "text", "text": "seen"}},
            {"type": "diff", "path": "/app/a", "newText": "x"},
        ])  # fmt: skip
        update(sessionUpdate="plan", entries=[{"content": "one", "priority": "high", "status": "pending"}])
    if "requests" in how:
        say(json.dumps([ask(item["method"], **item["params"]) for item in json.loads(text)]))
    if "permission" in how:
        say(json.dumps(ask("session/request_permission", **json.loads(text))))
    if "env" in how:
        say(json.dumps(dict(os.environ)))
    usage = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10, "cachedReadTokens": 2}
    send({"id": request["id"], "result": {"stopReason": "end_turn", "usage": usage}})


def main():
    if "exit" in how:
        print("no key found", file=sys.stderr)
        sys.exit(3)
    if "noise" in how:
        print("Welcome to the agent!\n[info] starting", flush=True)
    if "only-noise" in how:
        print("Welcome to the agent!", flush=True)
        time.sleep(1000)
    if "flood" in how:
        while True:
            sys.stdout.write("y" * 65536 + "\n")
    if "long-line" in how:
        while True:
            sys.stdout.write("{" + "y" * 65536)
    if "silent" in how:
        time.sleep(1000)
    while True:
        request = receive()
        method, params = request.get("method"), request.get("params") or {}
        if method == "initialize":
            version = 99 if "version" in how else 1
            capabilities = {"mcpCapabilities": {"http": "mcp" in how}}
            if "not-an-object" in how:
                send({"id": request["id"], "result": "hello"})
                continue
            send({"id": request["id"], "result": {"protocolVersion": version, "agentCapabilities": capabilities}})
        elif method == "session/new":
            if "auth" in how:
                send({"id": request["id"], "error": {"code": -32000, "message": "Authentication required"}})
                continue
            result = {"sessionId": "s"}
            if "config" in how:
                result["configOptions"] = [
                    {
                        "id": "m",
                        "name": "Model",
                        "type": "select",
                        "category": "model",
                        "currentValue": "small",
                        "options": [{"value": "small", "name": "Small"}, {"value": "acme/large", "name": "Large"}],
                    },
                    {
                        "id": "e",
                        "name": "Effort",
                        "type": "select",
                        "category": "thought_level",
                        "currentValue": "low",
                        "options": [{"group": "g", "name": "G", "options": [{"value": "high", "name": "High"}]}],
                    },
                ]
            if "models" in how:
                result["models"] = {"currentModelId": "a", "availableModels": [{"modelId": "a"}, {"modelId": "b"}]}
            send({"id": request["id"], "result": result})
            if "mcp" in how:
                print(json.dumps(params["mcpServers"]), file=sys.stderr, flush=True)
        elif method in ("session/set_config_option", "session/set_model"):
            print(json.dumps(params), file=sys.stderr, flush=True)
            send({"id": request["id"], "result": {}})
        elif method == "session/prompt":
            prompt(request, params["prompt"][0]["text"])


main()
