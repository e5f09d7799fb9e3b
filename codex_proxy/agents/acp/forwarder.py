"""Forwards an MCP client's messages from stdin to the tool server, for agents that take no MCP servers over HTTP.

    python -I -S forwarder.py URL

The token is in the variable TOOL_SERVER_TOKEN. Each line of stdin is posted to the URL in a thread of its own, since a
call may wait for minutes; what comes back, as JSON or as a stream of events, is printed line by line. It ends with its
stdin. It imports nothing of the proxy: the agent starts it by its path.
"""

import http.client
import os
import sys
import threading
import urllib.parse

TOKEN = os.environ.pop("TOOL_SERVER_TOKEN", "")
LOCK = threading.Lock()
SECONDS = 86_400.0


def put(line: bytes) -> None:
    """Prints one message to stdout as a line."""
    if line.strip():
        with LOCK:
            sys.stdout.buffer.write(line.strip() + b"\n")
            sys.stdout.buffer.flush()


def forward(url: urllib.parse.SplitResult, line: bytes) -> None:
    """Posts a message, and prints each message of the response. Prints nothing if the tool server is gone, since
    the session has ended then.
    """
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=SECONDS)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {TOKEN}",
    }
    try:
        connection.request("POST", url.path, line, headers)
        answer = connection.getresponse()
        if (answer.getheader("Content-Type") or "").startswith("text/event-stream"):
            for each in answer:
                if each.startswith(b"data:"):
                    put(each[5:])
        else:
            put(answer.read())
    except (OSError, http.client.HTTPException) as error:
        print(f"the tool server did not answer: {type(error).__name__}", file=sys.stderr)
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    """Forwards until stdin ends. Returns the exit code."""
    url = urllib.parse.urlsplit(arguments[1])
    for line in sys.stdin.buffer:
        if line.strip():
            threading.Thread(target=forward, args=(url, line), daemon=True).start()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
