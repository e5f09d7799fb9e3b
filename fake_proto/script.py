"""The script of one turn: the steps of the fake model, made of a scenario file, the marker's options, the settings and
the request. Their actions contain every text, which a dialect only has to write.
"""

from __future__ import annotations

import json
import os

from fake_proto.faults import POLL_S, Faults
from fake_proto.marker import Marker, find_marker
from fake_proto.unmarked import unmarked_scenario

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fake_proto.request import Request
    from fake_proto.settings import Settings

    Action = dict[str, Any]

SCENARIOS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scenarios")
DEFAULT_USAGE = {"input": 100, "cached": 40, "output": 20, "reasoning": 5}
USAGE_OPTIONS = {"input": "in", "cached": "cached", "output": "out", "reasoning": "reasoning"}
OPTIONS = frozenset(
    {
        *(
            "say",
            "anew",
            "pieces",
            "n",
            "size",
            "delay",
            "first",
            "hold",
            "in",
            "out",
            "cached",
            "reasoning",
            "limits",
        ),
        *("times", "finish", "name", "args", "calls", "rounds", "step", "message", "code", "retries"),
        *("misbehave", "at", "behind", "until", "bytes", "words", "path", "late", "cost", "tasks", "form"),
        "files",
    }
)
"""The keys that a marker may have."""
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo")
FLOOD = 100_000
BIG_LINE = 10_000_000


class Step:
    """One response of the model. `usage`: its tokens, None if not reported; `end`: why it ended."""

    __slots__ = ("actions", "choice_ends", "end", "end_on", "usage")

    def __init__(self, actions: list[Action], usage: dict[str, int] | None, end: str) -> None:
        self.actions = actions
        self.usage = usage
        self.end = end
        self.end_on = "task_complete"
        self.choice_ends: dict[str, str] | None = None


class Script:
    """The steps of one turn, with its delays in seconds (`first`, `delay`) and its faults, which begin here."""

    __slots__ = (
        "_request",
        "_scenario",
        "_settings",
        "delay",
        "faults",
        "first",
        "hold",
        "limits",
        "options",
        "start",
    )

    def __init__(self, request: Request, settings: Settings, process_faults: Faults) -> None:
        text = request.last_user_text()
        found = find_marker(text) if settings.text("MARKERS") != "off" else None
        marker = found or Marker(settings.text("MODE") or "text", {})
        options = marker.options
        self._request = request
        self._settings = settings
        self.options = options
        self.faults = process_faults
        if "misbehave" in options:
            self.faults = Faults(options["misbehave"], options)
            self.faults.begin(settings.text("PID_FILE"), settings.text("SILENT_FILE"))
        self.faults.evil_file = settings.text("EVIL")
        chosen = found is not None or bool(settings.text("MODE"))
        unmarked = None if chosen else unmarked_scenario(request)
        self._scenario = unmarked or _scenario("count" if self.faults.has("flood") else marker.name)
        if unknown := options.keys() - OPTIONS:
            self._scenario = _failing(f"the fake agent's markers have no key {min(unknown)!r}")
        rounds = int(options.get("rounds", "0"))
        if rounds:
            self._scenario["steps"] = self._scenario["steps"][:1] * rounds + self._scenario["steps"][-1:]
        answered = int(options.get("step") or request.answered_rounds(marker.end))
        if request.options.get("tool_choice") == "none" and "name" not in options:
            answered = len(self)
        self.start = min(answered, len(self) - 1) if self._waits_for_tools() and unmarked is None else 0
        self.delay = float(options.get("delay") or settings.number("DELAY_MS")) / 1000
        self.first = float(options.get("first") or settings.number("FIRST_DELAY_MS")) / 1000
        self.limits = options.get("limits") or settings.text("LIMITS")
        """The used percentage of the account's limit; empty if no limits are reported."""
        held = options.get("hold", settings.text("HOLD")) == "1"
        self.hold = settings.env.get("STREAM_RELEASE_FILE", "") if held else ""

    def pause(self) -> Iterator[float]:
        """Yields the seconds to wait after a delta: after the first one until the file `hold` exists, if one is set;
        then `delay`.
        """
        hold, self.hold = self.hold, ""
        while hold and not os.path.exists(hold):
            yield POLL_S
        yield self.delay

    @property
    def extended(self) -> bool:
        """Whether the client has sent fields that only the fake `codex proto` knows, and so knows its events."""
        return bool(self._request.options)

    def _waits_for_tools(self) -> bool:
        return any(action["do"] == "calls" for step in self._scenario["steps"] for action in step["actions"])

    def __len__(self) -> int:
        return len(self._scenario["steps"])

    def step(self, index: int, outputs: list[str]) -> Step:
        """Returns a step with all its texts. `outputs`: the outputs of the tools so far."""
        data = self._scenario["steps"][index]
        is_last = index == len(self) - 1
        times = int(self.options.get("times", "1"))
        actions = [self._fill(action, outputs) for _ in range(times) for action in data["actions"]]
        if is_last:
            self._say(actions, outputs)
        if index == self.start:
            actions[:0] = self._disturbances()
        step = Step(actions, self._usage(data), data.get("end", "stop"))
        step.end_on = data.get("end_on", step.end_on)
        step.choice_ends = data.get("choice_ends")
        wanted = self.options.get("finish") or self._settings.text("FINISH_REASON")
        if is_last and wanted and step.end == "stop":
            step.end = wanted
        return step

    def _fill(self, action: Action, outputs: list[str]) -> Action:
        do = action["do"]
        if do == "message":
            return self._message(dict(action), outputs)
        if do == "choices":
            texts = action["texts"]
            return {"do": do, "messages": [{"deltas": words(t), "final": t} for t in texts]}
        if do == "calls":
            return self._calls(dict(action))
        if do in ("error", "retry"):
            return self._error(dict(action))
        return action

    def _message(self, action: Action, outputs: list[str]) -> Action:
        if action.get("echo"):
            text = json.dumps(self._request.describe(), ensure_ascii=False, separators=(",", ":"))
            deltas = [text[i : i + 16] for i in range(0, len(text), 16)]
        elif "count" in action:
            deltas = self._numbered_deltas(action["count"], action["size"])
        else:
            text = action.get("text", "").replace("{outputs}", "; ".join(outputs))
            deltas = action.get("deltas") or words(text)
        action["final"] = action.get("final", "".join(deltas))
        action["deltas"] = [] if action.get("whole") else deltas
        return action

    def _say(self, actions: list[Action], outputs: list[str]) -> None:
        """Replaces the last message of the scenario by the options `say`, `pieces` and `n`."""
        for action in reversed(actions):
            if action["do"] == "message" and "count" not in action:
                said = self.options.get("anew") if self._request.is_asked_anew() else None
                said = self.options.get("say") if said is None else said
                if said is not None:
                    deltas = words(said.replace("{outputs}", "; ".join(outputs)))
                elif "pieces" in self.options:
                    deltas = [str(piece) for piece in json.loads(self.options["pieces"])]
                elif "n" in self.options:
                    deltas = [f"word{i} " for i in range(int(self.options["n"]))]
                else:
                    return
                action["final"] = "".join(deltas)
                action["deltas"] = [] if action.get("whole") else deltas
                return

    def _numbered_deltas(self, count: int, size: int) -> list[str]:
        if self.faults.has("flood"):
            count = FLOOD
        count = int(self.options.get("n", count))
        size = int(self.options.get("size", size))
        return [f"{i} ".rjust(size, ".")[-size:] for i in range(count)]

    def _calls(self, action: Action) -> Action:
        names = self.options.get("name", "").split(",")
        wanted = int(self.options.get("calls", len(action["calls"])))
        if self._request.options.get("parallel_tool_calls") is False:
            wanted = min(wanted, 1)
        calls = []
        for i in range(wanted):
            fragments = action["calls"][i]["arguments"] if i < len(action["calls"]) else _arguments(i)
            if "args" in self.options:
                fragments = _halves(self.options["args"])
            offered = self._request.tools[0] if self._request.tools else "get_weather"
            name = (
                names[i % len(names)]
                or (i < len(action["calls"]) and action["calls"][i].get("name"))
                or offered
            )
            custom = self._request.is_custom(name)
            if custom:
                fragments = _halves(_input_of("".join(fragments)))
            calls.append({"name": name, "arguments": fragments, "custom": custom})
        action["calls"] = calls
        return action

    def _error(self, action: Action) -> Action:
        texts = action["texts"]
        text = texts.get(self._request.dialect) or texts["any"]
        text = self.options.get("message", text).replace("{model}", self._request.model)
        if "code" in self.options and not self.faults.has("crash") and action["do"] == "error":
            code = self.options["code"]
            body = {"message": text, "type": "invalid_request_error", "param": None, "code": code}
            text = json.dumps({"error": body}, ensure_ascii=False)
            if self._request.dialect == "proto":
                text = "unexpected status 400 Bad Request: " + text
            action["kind"] = "other"
        action["text"] = text
        action["retries"] = int(self.options.get("retries", "0"))
        return action

    def _usage(self, data: Action) -> dict[str, int] | None:
        usage = data.get("usage", DEFAULT_USAGE)
        if usage is None:
            return None
        told = {
            part: self.options.get(option, "") or self._settings.text("USAGE_" + part.upper())
            for part, option in USAGE_OPTIONS.items()
        }
        counts = {part: int(text or usage[part]) for part, text in told.items()}
        for part, whole in (("cached", "input"), ("reasoning", "output")):
            if not told[part]:  # a part that nobody asked for is no more than what it is a part of
                counts[part] = min(counts[part], counts[whole])
        return counts

    def _disturbances(self) -> list[Action]:
        found: list[Action] = []
        if self.faults.has("big_line"):
            found.append({"do": "big_line", "bytes": int(self.faults.options.get("bytes", BIG_LINE))})
        if self.faults.has("unknown_request"):
            found.append({"do": "unknown_request"})
        return found


def words(text: str) -> list[str]:
    """Splits a text before each space, as a model does: `Hello`, ` there`."""
    first, *rest = text.split(" ")
    pieces = [first, *(" " + word for word in rest)]
    return [piece for piece in pieces if piece]


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [half for half in (text[:middle], text[middle:]) if half]


def _input_of(arguments: str) -> str:
    """Returns the text for a custom tool: the only string in a function's arguments, or all of them."""
    try:
        values = list(json.loads(arguments).values())
    except (ValueError, AttributeError):
        return arguments
    return values[0] if len(values) == 1 and isinstance(values[0], str) else arguments


def _arguments(i: int) -> list[str]:
    return ['{"city":', f' "{CITIES[i % len(CITIES)]}"}}']


def _scenario(name: str) -> Action:
    """Returns a scenario; for an unknown name one that fails and says so."""
    if os.path.basename(name) != name:
        return _failing(f"the fake agent has no scenario {name!r}")
    try:
        with open(os.path.join(SCENARIOS, name + ".json"), encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return _failing(f"the fake agent has no scenario {name!r}")


def _failing(text: str) -> Action:
    """Returns a scenario that fails with this text."""
    action = {"do": "error", "kind": "other", "texts": {"any": text}}
    return {"steps": [{"actions": [action], "end": "error"}]}
