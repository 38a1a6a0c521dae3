"""A small MCP server without a library, over stdio: it starts in an instant, and hangs or dies on demand."""

import json
import os
import sys

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [{"name": name, "inputSchema": NUMBERS} for name in ("add", "hang", "die")]


def answer(method, given):
    """The result of a request; None: it gets none."""
    if method == "initialize":
        server = {"name": "bare", "version": "1"}
        return {
            "protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server,
        }  # fmt: skip
    if method == "tools/list":
        return {"tools": TOOLS}
    if given["name"] == "die":
        os._exit(1)
    if given["name"] == "hang":
        return None
    text = str(sum(given["arguments"].values()))
    return {"content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue  # a notification
    sent = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] in ("initialize", "tools/list", "tools/call"):
        sent["result"] = answer(request["method"], request.get("params", {}))
    else:  # newer than this server
        sent["error"] = {"code": -32601, "message": "Method not found"}
    if sent.get("result", sent.get("error")) is not None:
        print(json.dumps(sent), flush=True)
