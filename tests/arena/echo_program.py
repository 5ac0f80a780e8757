"""An A2A server of the standard library: counts the messages of a conversation and repeats them."""

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--host")
parser.add_argument("--port", type=int)
parser.add_argument("--card-url")
args = parser.parse_args()
assert (args.host, str(args.port), args.card_url) == (os.environ["HOST"], os.environ["PORT"], os.environ["CARD_URL"])
counts = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        interfaces = [{"url": args.card_url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
        self.reply({"name": "echo", "supportedInterfaces": interfaces, "capabilities": {}, "skills": []})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = body["params"]["message"]
        context = message.get("contextId") or f"mine-{len(counts)}"
        counts[context] = counts.get(context, 0) + 1
        text = f"{counts[context]}: {message['parts'][0]['text']}"
        said = {"messageId": "m", "role": "ROLE_AGENT", "contextId": context, "parts": [{"text": text}]}
        self.reply({"jsonrpc": "2.0", "id": body["id"], "result": {"message": said}})


ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
