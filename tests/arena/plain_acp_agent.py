"""An ACP agent of the standard library: thinks, runs a tool of its own, and says how many prompts its session had."""

import json
import sys

prompts = {}


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def update(session, **about):
    send(method="session/update", params={"sessionId": session, "update": about})


for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params") or {}
    if method == "initialize":
        send(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []})
    elif method == "session/new":
        session = f"s{len(prompts)}"
        prompts[session] = []
        send(id=asked["id"], result={"sessionId": session})
    elif method == "session/prompt":
        session = params["sessionId"]
        prompts[session].append("".join(block["text"] for block in params["prompt"]))
        text = {"type": "text", "text": "Let me see."}
        update(session, sessionUpdate="agent_thought_chunk", content=text)
        update(session, sessionUpdate="tool_call", toolCallId="t1", title="look", kind="read", status="completed")
        said = f"{session} {len(prompts[session])} {'quetzalcoatl' in prompts[session][0]}"
        update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": said})
        send(id=asked["id"], result={"stopReason": "end_turn"})
    elif "id" in asked and method:
        send(id=asked["id"], error={"code": -32601, "message": "no such method"})
