"""Packages of small games, and an assessor that is nothing but the standard library, for tests and benchmarks."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

ASSESSOR = '''\
"""An assessor in the style of the public starters: asks everybody ROUNDS times, then gives a verdict. Protocol 0.3."""
import argparse, json, os, sys, time, urllib.request, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--host"); parser.add_argument("--port", type=int); parser.add_argument("--card-url")
args = parser.parse_args()

def ask(url, text, context):
    message = {"kind": "message", "role": "user", "messageId": uuid.uuid4().hex, "contextId": context,
               "parts": [{"kind": "text", "text": text}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=600))
    if "error" in answer:
        return "error: " + answer["error"]["message"]
    result = answer["result"]
    parts = result.get("parts") or result["status"].get("message", {}).get("parts", [])
    return "".join(part.get("text", "") for part in parts)

PLAY = None
exec(open("play.py").read())

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        card = {"name": "green", "description": "", "version": "1", "url": args.card_url, "protocolVersion": "0.3.0",
                "preferredTransport": "JSONRPC", "capabilities": {"streaming": True}, "skills": [],
                "defaultInputModes": ["text"], "defaultOutputModes": ["text"]}
        self.reply(json.dumps(card).encode(), "application/json")
    def reply(self, data, kind):
        self.send_response(200); self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["method"] != "message/stream":
            open("/tmp/cancelled", "w").close()
            task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "canceled"}}
            answer = {"jsonrpc": "2.0", "id": body.get("id"), "result": task}
            return self.reply(json.dumps(answer).encode(), "application/json")
        self.send_response(200); self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close"); self.end_headers()
        def event(result):
            data = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": result})
            self.wfile.write(f"data: {data}\\n\\n".encode()); self.wfile.flush()
        def status(state, text=None, data=None):
            parts = [{"kind": "text", "text": text}] if text else []
            parts += [{"kind": "data", "data": data}] if data else []
            message = {"kind": "message", "role": "agent", "messageId": uuid.uuid4().hex, "parts": parts}
            final = state not in ("working", "submitted")
            event({"kind": "status-update", "taskId": "t", "contextId": "c", "final": final,
                   "status": {"state": state, **({"message": message} if parts else {})}})
        def artifact(value):
            event({"kind": "artifact-update", "taskId": "t", "contextId": "c", "artifact": {"artifactId": "a",
                   "parts": [{"kind": "data", "data": value}, {"kind": "text", "text": json.dumps(value)}]}})
        event({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "submitted"}})
        request = json.loads(body["params"]["message"]["parts"][0]["text"])
        try:
            state = play(request, status, artifact)
        except Exception as error:
            status("failed", f"{type(error).__name__}: {error}")
        else:
            status(state or "completed")

ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
'''

PLAY = '''\
def play(request, status, artifact):
    """The role with the higher number wins; whatever else is said counts for nothing."""
    said = {role: ask(url, "Say a number.", "game") for role, url in request["participants"].items()}
    numbers = {}
    for role, text in said.items():
        numbers[role] = float(text) if text.strip().replace(".", "", 1).isdigit() else 0.0
        status("working", f"{role} said {text[:80]}", {"reward_event": {"role": role, "reward": numbers[role] / 10}})
    best = max(numbers.values())
    winners = [role for role, number in numbers.items() if number == best]
    artifact({"winner": winners[0] if len(winners) == 1 else None,
              "rewards": {role: min(number / 10, 1.0) for role, number in numbers.items()},
              "detail": {"said": {role: text[:80] for role, text in said.items()}}})
'''


def game_package(
    path: Path,
    *,
    roles: Sequence[str] = ("first", "second"),
    play: str = PLAY,
    config: str = "{}",
    agent: str | None = "a2a:python3 assessor.py",
    agents: Mapping[str, str] | None = None,
    extra: str = "",
    timeout: float = 60,
) -> Path:
    """A game in which every role answers messages; `play` is the function of its assessor."""
    (path / "verifier").mkdir(parents=True)
    (path / "oracle").mkdir()
    (path / "prompts").mkdir()
    declared = "\n".join(f"    {role}: {{agent: '{(agents or {}).get(role, 'nop')}'}}" for role in roles)
    (path / "task.md").write_text(
        f"---\nschema_version: '1.3'\ntask: {{name: tests/game}}\nagent: {{timeout_sec: {timeout}}}\n"
        f"verifier: {{timeout_sec: 240}}\n{extra}"
        f"environment: {{network_mode: no-network, workdir: /app}}\nagents:\n  roles:\n{declared}\n"
        "benchflow:\n  document_version: '0.6'\n"
        f"  interaction: {{mode: arena-concurrent, participants: [{', '.join(roles)}]}}\n---\nPlay the game.\n"
    )
    chosen = "" if agent is None else f"\n      agent: {json.dumps(agent)}"
    (path / "verifier/verifier.md").write_text(
        "---\ndocument_version: '0.3'\nverifier:\n  name: game\n  default_strategy: referee\n"
        "  strategies:\n    referee:\n"
        f"      type: assessor\n      role: umpire\n      protocol: a2a{chosen}\n      config: {config}\n"
        "---\n## role:umpire\nThe higher number wins this little game of ours.\n"
    )
    (path / "verifier/assessor.py").write_text(ASSESSOR)
    (path / "verifier/play.py").write_text(textwrap.dedent(play))
    for role in roles:
        (path / f"prompts/role.{role}.md").write_text(f"You are {role}. Your secret word is quetzalcoatl-{role}.\n")
        (path / f"oracle/{role}.sh").write_text("#!/bin/sh\ncat >/dev/null\necho 9\n")
    return path
