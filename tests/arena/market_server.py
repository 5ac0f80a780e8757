"""An MCP server over standard streams, of the standard library: one shelf that all roles share."""

import json
import sys

shelf = {}
TOOLS = [
    {"name": "put", "description": "Put a thing on the shelf.", "inputSchema": {"type": "object"}},
    {"name": "look", "description": "What is on the shelf.", "inputSchema": {"type": "object"}},
]

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    params = asked.get("params") or {}
    if asked["method"] == "tools/list":
        result = {"tools": TOOLS}
    elif asked["method"] == "tools/call":
        role = params["_meta"]["benchflow/role"]
        if params["name"] == "put":
            shelf[params["arguments"]["thing"]] = role
        result = {"content": [{"type": "text", "text": json.dumps(shelf)}]}
    else:
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "shelf", "version": "1"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
