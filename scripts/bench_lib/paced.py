"""An app-server with many threads that sends deltas at a pace, each with the time at which it was sent.

python -I paced.py FOLDER

A program of its own. FOLDER/plan has JSON: `deltas` of a turn (0: until it is interrupted) and `every`, the seconds
between two of them (0: all at once). The time is that of the monotonic clock, which all processes share. It plays only
what the proxy requests before and after a turn.
"""

import heapq
import json
import os
import select
import sys
import time
from typing import Any

PLAN = "plan"
ITEM = "msg_732_0"
USAGE = {"totalTokens": 120, "inputTokens": 100, "cachedInputTokens": 40, "outputTokens": 20}

ANSWERS: dict[str, Any] = {
    "initialize": {"userAgent": "bench/0.163.0 (bench)"},
    "account/read": {"account": None, "requiresOpenaiAuth": False},
    "model/list": {"data": [], "nextCursor": None},
}


def line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def notification(method: str, thread: str, **params: Any) -> bytes:
    return line({"method": method, "params": {"threadId": thread, "turnId": "u" + thread, **params}})


def delta_template(thread: str) -> bytes:
    """Returns the line of a delta of this thread, with a placeholder for the time: encoding each would delay a thousand
    streams.
    """
    encoded = notification("item/agentMessage/delta", thread, itemId=ITEM, delta="MOMENT ")
    return encoded.replace(b"%", b"%%").replace(b"MOMENT", b"%.6f")


def delta(template: bytes) -> bytes:
    return template % time.monotonic()


class Server:
    """The threads, and when each of them sends its next delta."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.deltas: int = plan["deltas"]
        self.every: float = plan["every"]
        self.threads = 0
        self.due: list[tuple[float, str, bytes]] = []
        self.left: dict[str, int] = {}

    def receive(self, message: dict[str, Any]) -> bytes:
        """Returns the answer to a line, and the lines that it causes at once."""
        method, params = message.get("method"), message.get("params", {})
        if method is None or "id" not in message:
            return b""
        answer, more = ANSWERS.get(method, {}), b""
        thread = params.get("threadId", "")
        if method == "thread/start":
            self.threads += 1
            answer = {"thread": {"id": f"{os.getpid()}-{self.threads}"}, "model": "bench"}
        elif method == "turn/start":
            answer = {"turn": {"id": "u" + thread, "items": [], "status": "inProgress"}}
            more = self.begin(thread)
        elif method in ("turn/interrupt", "thread/unsubscribe"):
            self.left.pop(thread, None)
        return line({"id": message["id"], "result": answer}) + more

    def begin(self, thread: str) -> bytes:
        item = {"type": "agentMessage", "id": ITEM, "text": "", "phase": None}
        said = notification("turn/started", thread, turn={"id": "u" + thread, "status": "inProgress"})
        said += notification("item/started", thread, item=item)
        if not self.every:
            template = delta_template(thread)
            return said + b"".join(delta(template) for _ in range(self.deltas)) + self.end(thread)
        self.left[thread] = self.deltas or -1
        heapq.heappush(self.due, (time.monotonic() + self.every, thread, delta_template(thread)))
        return said

    def end(self, thread: str) -> bytes:
        ended: dict[str, Any] = {"id": "u" + thread, "items": [], "status": "completed", "error": None}
        return notification("rawResponse/completed", thread, responseId="r", usage=USAGE) + notification(
            "turn/completed", thread, turn=ended
        )

    def tick(self) -> bytes:
        """Returns the lines that are due now."""
        said = []
        now = time.monotonic()
        while self.due and self.due[0][0] <= now:
            when, thread, template = heapq.heappop(self.due)
            if thread not in self.left:
                continue
            said.append(delta(template))
            self.left[thread] -= 1
            if self.left[thread] == 0:
                del self.left[thread]
                said.append(self.end(thread))
            else:
                heapq.heappush(self.due, (when + self.every, thread, template))
        return b"".join(said)


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def main(folder: str) -> None:
    with open(os.path.join(folder, PLAN), encoding="utf-8") as file:
        server = Server(json.load(file))
    rest = b""
    while True:
        wait = max(0.0, server.due[0][0] - time.monotonic()) if server.due else None
        readable, _, _ = select.select([0], [], [], wait)
        if readable:
            chunk = os.read(0, 1 << 20)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            write_all(b"".join(server.receive(json.loads(each)) for each in lines))
        write_all(server.tick())


if __name__ == "__main__":
    main(sys.argv[1])
