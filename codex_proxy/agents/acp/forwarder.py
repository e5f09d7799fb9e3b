"""Forwards an MCP client's messages from stdin to the tool server over HTTP, for agents that connect to MCP servers
only over stdio. Usage:

    python -I -S forwarder.py URL

The environment variable TOOL_SERVER_TOKEN has the tool server's bearer token. Each line of stdin is posted to the
URL in its own thread, since a call may wait for minutes. The messages of the response, which is JSON or a stream of
server-sent events, are printed as lines. The program ends at the end of stdin. It imports no module of the proxy,
because the agent starts it as a file.
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
    """Prints one message to stdout as a line. Does nothing if it is empty."""
    if line.strip():
        with LOCK:
            sys.stdout.buffer.write(line.strip() + b"\n")
            sys.stdout.buffer.flush()


def forward(url: urllib.parse.SplitResult, line: bytes) -> None:
    """Posts one message to the URL, and prints each message of the response to stdout. If the tool server does not
    answer, for example because the session has ended, prints the error to stderr.
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
    """Forwards each line of stdin until stdin ends. `arguments` is `sys.argv`, whose second element is the URL.
    Returns the exit code, always 0.
    """
    url = urllib.parse.urlsplit(arguments[1])
    for line in sys.stdin.buffer:
        if line.strip():
            threading.Thread(target=forward, args=(url, line), daemon=True).start()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
