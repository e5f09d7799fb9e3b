"""Forwards an MCP client's messages from stdin to the tool server over HTTP, for agents whose MCP servers are programs:
`python -I -S forwarder.py URL`. TOOL_SERVER_TOKEN holds the bearer token. Each line is posted in its own thread, since
a call may wait for minutes; the answer's messages are printed as lines. Imports nothing of the server, since the agent
starts it as a file.
"""

import http.client
import json
import os
import sys
import threading
import urllib.parse

TOKEN = os.environ.pop("TOOL_SERVER_TOKEN", "")
LOCK = threading.Lock()
MAX_SILENT_SECONDS = 86_400.0
"""Maximum seconds to wait for the tool server to send something."""
INTERNAL_ERROR = -32603
UNAUTHORIZED = 401
"""The status with which a session that has ended answers."""


def put(line: bytes) -> tuple[bool, str]:
    """Prints a message as a line, but for what is no JSON, and an error without an id, which nobody waits for. Returns
    whether it answers a request, and what such an error says.
    """
    message = decoded(line)
    if isinstance(message, dict) and "method" not in message and message.get("id") is None:
        error = message.get("error")
        return False, str(error.get("message")) if isinstance(error, dict) else ""
    if not isinstance(message, (dict, list)):
        return False, ""
    with LOCK:
        sys.stdout.buffer.write(line.strip() + b"\n")
        sys.stdout.buffer.flush()
    return isinstance(message, list) or "method" not in message, ""


def decoded(line: bytes) -> object:
    """Returns the value of a line of JSON; None if it is none."""
    try:
        return json.loads(line.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def forward(url: urllib.parse.SplitResult, line: bytes) -> None:
    """Posts a message, and prints each message of the response, or an error for a request that gets no answer."""
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=MAX_SILENT_SECONDS)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {TOKEN}",
    }
    answered, reason = False, "the session has ended"
    try:
        connection.request("POST", url.path, line, headers)
        response = connection.getresponse()
        if (response.getheader("Content-Type") or "").startswith("text/event-stream"):
            for each in response:
                if each.startswith(b"data:"):
                    answered = put(each[5:])[0] or answered
        else:
            answered, error = put(response.read())
            status = f"status {response.status}"
            reason = reason if response.status == UNAUTHORIZED else error or status
    except (OSError, http.client.HTTPException) as error:
        reason = type(error).__name__
    finally:
        connection.close()
    message = decoded(line)
    asked = isinstance(message, dict) and message.get("id") is not None and "method" in message
    if isinstance(message, dict) and asked and not answered:
        refusal = {"code": INTERNAL_ERROR, "message": f"The tool server did not answer: {reason}."}
        put(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refusal}).encode())


def main(arguments: list[str]) -> int:
    url = urllib.parse.urlsplit(arguments[1])
    for line in sys.stdin.buffer:
        if line.strip():
            threading.Thread(target=forward, args=(url, line), daemon=True).start()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
