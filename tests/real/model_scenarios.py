"""What the scripted model does, chosen by the prompt.

A marker ``[[model:NAME key=value key="quoted value"]]`` in a user message picks the scenario; the last user
message that has one counts, and without any it is ``text``. The closing brackets end the message or are
followed by white space, so a value may hold ``]]``. ``step`` is the number of tool outputs after that
message: a tool scenario calls tools in its first ``rounds`` steps and speaks afterwards.

===========  ====================================================================================
text         ``say="full text"``, or ``n`` words (``word``); ``first``, ``delay``: milliseconds
reasoning    ``parts`` summary parts of ``n`` words, ``raw=1`` for raw reasoning too; then text
tool         ``n`` parallel calls of ``name=a,b`` with ``args``, ``rounds``, ``pre`` (text before),
             ``kind=custom``, ``ns`` (namespace), ``chunk`` (size of an argument delta)
plan         ``plan``: JSON, a list of responses, each a list of what it puts out (``model_plans``); ``again``:
             one such response for a model that is told its answer was thrown away
shell        the offered shell tool with ``cmd``, waited for ``yield`` ms
json         ``body`` as text
refusal      a refusal part with ``say``
incomplete   text, then ``why=max_output_tokens|content_filter``; ``finish=0`` leaves the item open
failed       ``n`` words, then ``response.failed`` with ``code`` and ``msg``
http         no stream: ``status``, ``code``, ``type``, ``msg``, ``retry`` (Retry-After), ``raw`` (whole body)
drop         ``n`` words, then the connection breaks; ``at=end``: before the last event
stall        ``n`` words, then silence until ``gate`` is opened, then the rest of the text
hang         no response headers until ``gate`` is opened
multi        ``msgs`` messages, the last in phase ``final_answer``
limits       text with rate-limit headers
echo         says as JSON which roles and tools it was given
===========  ====================================================================================

``http``, ``drop`` and ``failed`` take ``times=K``: only the first K requests with this marker are faulty.
Usage: ``in``, ``out``, ``cached``, ``reasoning``; ``usage=0`` leaves it out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.real.model_events import (
    Act,
    Drop,
    Event,
    Gate,
    Headers,
    HttpAnswer,
    Options,
    Reply,
    words_of,
)

MARKER = re.compile(r"\[\[model:([a-z]+)((?:\s.*?)?)\]\](?=\s|$)", re.DOTALL)
OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
CITIES = ("Paris", "Rome", "Oslo", "Bern", "Lima", "Cairo", "Delhi", "Quito")
RATE_LIMITS = {
    "x-codex-primary-used-percent": "42.5",
    "x-codex-primary-window-minutes": "300",
    "x-codex-primary-reset-at": "4102444800",
    "x-codex-secondary-used-percent": "7",
    "x-codex-secondary-window-minutes": "10080",
    "x-codex-secondary-reset-at": "4102531200",
}


@dataclass(frozen=True)
class ChosenScenario:
    """The scenario of one request. ``marker`` is its text: attempts are counted by it."""

    name: str
    options: Options
    step: int
    marker: str


def choose(body: dict[str, Any]) -> ChosenScenario:
    """Reads the scenario out of a request body."""
    step = 0
    for item in reversed(items_of(body)):
        if item.get("type") in OUTPUT_TYPES:
            step += 1
        elif item.get("role") == "user":
            found = list(MARKER.finditer(text_of(item)))
            if found:
                name, rest = found[-1].groups()
                options = dict(word.partition("=")[::2] for word in shlex.split(rest))
                return ChosenScenario(name, options, step, found[-1].group())
    return ChosenScenario("text", {}, step, "")


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The input items; a bare string is one user message."""
    given = body.get("input", [])
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def text_of(item: dict[str, Any]) -> str:
    """The text of a message, whatever its content form."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [])


def tools_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The offered tools by name: of ``tools``, and of an ``additional_tools`` input item (the lite form).

    Those of a namespace are named with it, but for ``functions``: that is Codex's wrapper, not the client's.
    """
    entries = list(body.get("tools") or [])
    for item in items_of(body):
        if item.get("type") == "additional_tools":
            entries += item.get("tools", [])
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.get("type") == "namespace":
            prefix = "" if entry["name"] == "functions" else f"{entry['name']}."
            found |= {prefix + tool["name"]: tool for tool in entry["tools"]}
        else:
            found[entry.get("name") or entry["type"]] = entry
    return found


def play(chosen: ChosenScenario, reply: Reply, body: dict[str, Any], attempt: int) -> Iterator[Act]:
    """The acts of one response. ``attempt`` counts the requests with the same marker and step, from 1."""
    times = int(chosen.options.get("times", 0))
    name = "text" if 0 < times < attempt else chosen.name
    if name not in SCENARIOS:
        return iter([HttpAnswer(400, json.dumps({"error": {"message": f"no scenario {name!r}"}}), {})])
    return SCENARIOS[name](reply, chosen, body)


def _say(reply: Reply, default: str = "Hello from the scripted model.") -> list[str]:
    if "say" in reply.options:
        return words_of(reply.options["say"])
    if "n" in reply.options:
        word = reply.options.get("word", "word")
        return [f"{word}{index} " for index in range(reply.count("n", 0))]
    return words_of(default)


def _text(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    yield from reply.start()
    yield from reply.text(_say(reply))
    yield from reply.end()


def _limits(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    yield Headers(RATE_LIMITS)
    yield from _text(reply, chosen, body)


def _reasoning(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    count = reply.count("n", 4)
    parts = [
        [f"**Head{part}**\n\n", *(f"think{part}.{index} " for index in range(count))]
        for part in range(reply.count("parts", 2))
    ]
    raw = [f"raw{index} " for index in range(count)] if "raw" in reply.options else []
    yield from reply.start()
    yield from reply.reasoning(parts, raw)
    yield from reply.text(words_of(reply.options.get("say", "The answer is 42.")))
    yield from reply.end()


def _tool(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    options, count = reply.options, reply.count("n", 1)
    yield from reply.start()
    if chosen.step < count * reply.count("rounds", 1):
        if "pre" in options:
            yield from reply.text(words_of(options["pre"]))
        names = options.get("name", "get_weather").split(",")
        for index in range(count):
            arguments = options.get("args") or json.dumps({"city": CITIES[index % len(CITIES)]})
            yield from reply.call(
                names[index % len(names)],
                arguments,
                custom=options.get("kind") == "custom",
                namespace=options.get("ns"),
            )
    else:
        yield from reply.text(words_of(options.get("say", "Tools are done.")))
    yield from reply.end()


def _plan(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    """The response whose turn it is: each call of those before it has an output by now."""
    responses: list[list[dict[str, Any]]] = json.loads(reply.options["plan"])
    calls = 0
    put_out: list[dict[str, Any]] = [{"say": "The plan is over."}]
    for response in responses:
        if calls == chosen.step:
            put_out = response
            break
        calls += sum("call" in each for each in response)
    if "again" in reply.options and "thrown away" in " ".join(text_of(item) for item in items_of(body)):
        put_out = json.loads(reply.options["again"])
    yield from reply.start()
    for each in put_out:
        if "say" in each:
            yield from reply.text(words_of(each["say"]))
        elif "think" in each:
            yield from reply.reasoning([words_of(each["think"])], [])
        elif "wait" in each:
            yield Gate(each["wait"])
        elif "search" in each:
            action = {"type": "search", "query": each["search"]}
            item = {"type": "web_search_call", "id": f"ws_{reply.number}", "action": action}
            yield from reply.item(item | {"status": "completed"}, {"status": "in_progress"})
        else:
            custom = each.get("kind") == "custom"
            yield from reply.call(each["call"], each["text"], custom=custom, namespace=each.get("namespace"))
    yield from reply.end()


def _shell(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    command = reply.options.get("cmd", "echo hi")
    patience = {"yield_time_ms": reply.count("yield", 0)} if "yield" in reply.options else {}
    forms = {
        "exec_command": {"cmd": command, **patience},
        "shell_command": {"command": command},
        "shell": {"command": ["bash", "-lc", command]},
    }
    offered = [name for name in forms if name in tools_of(body)]
    yield from reply.start()
    if chosen.step == 0 and offered:
        yield from reply.call(offered[0], json.dumps(forms[offered[0]]))
    else:
        yield from reply.text(
            words_of(reply.options.get("say", "No shell." if not offered else "Shell is done."))
        )
    yield from reply.end()


def _json(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    text, size = reply.options.get("body", '{"a":1}'), reply.count("chunk", 4)
    yield from reply.start()
    yield from reply.text([text[start : start + size] for start in range(0, len(text), size)])
    yield from reply.end()


def _refusal(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    part = {"type": "refusal", "refusal": reply.options.get("say", "I cannot help with that.")}
    item = {"type": "message", "id": f"msg_{reply.number}_0", "role": "assistant", "content": [part]}
    yield from reply.start()
    yield from reply.item(item, added={"content": []})
    yield from reply.end()


def _incomplete(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    yield from reply.start()
    yield from reply.text(_say(reply), finish=reply.options.get("finish") != "0")
    why = reply.options.get("why", "max_output_tokens")
    yield from reply.end("incomplete", incomplete_details={"reason": why})


def _failed(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    yield from reply.start()
    if "n" in reply.options:
        yield from reply.text(_say(reply), finish=False)
    code = reply.options.get("code", "server_error")
    error = {"code": code, "message": reply.options.get("msg", f"scripted failure {code}")}
    yield from reply.end("failed", error=error)


def _http(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    options, status = reply.options, reply.count("status", 500)
    error = {
        "message": options.get("msg", f"scripted error {status}"),
        "type": options.get("type", "scripted_error"),
        "param": None,
        "code": options.get("code"),
    }
    headers = {"retry-after": options["retry"]} if "retry" in options else {}
    yield HttpAnswer(status, options.get("raw", json.dumps({"error": error})), headers)


def _drop(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    yield from reply.start()
    yield from reply.text(_say(reply), finish=reply.options.get("at") == "end")
    yield Drop()


def _stall(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    yield from reply.start()
    words = [f"word{index} " for index in range(reply.count("n", 3))]
    rest = words_of(reply.options.get("say", "and on."))
    for act in reply.text([*words, *rest]):
        if isinstance(act, Event) and act.data.get("delta") == rest[0]:
            yield Gate(reply.options.get("gate", ""))
        yield act
    yield from reply.end()


def _hang(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    yield Gate(reply.options.get("gate", ""))
    yield from _text(reply, chosen, body)


def _multi(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    count = reply.count("msgs", 2)
    yield from reply.start()
    for index in range(count):
        phase = "final_answer" if index == count - 1 else "commentary"
        yield from reply.text(words_of(f"Message number {index}."), phase=phase)
    yield from reply.end()


def _echo(reply: Reply, chosen: ChosenScenario, body: dict[str, Any]) -> Iterator[Act]:
    seen = {
        "roles": [item.get("role") or item.get("type") for item in items_of(body)],
        "tools": sorted(tools_of(body)),
        "effort": (body.get("reasoning") or {}).get("effort"),
    }
    yield from reply.start()
    yield from reply.text([json.dumps(seen)])
    yield from reply.end()


Scenario = Callable[[Reply, ChosenScenario, dict[str, Any]], Iterator[Act]]

SCENARIOS: dict[str, Scenario] = {
    "text": _text,
    "reasoning": _reasoning,
    "tool": _tool,
    "plan": _plan,
    "shell": _shell,
    "json": _json,
    "refusal": _refusal,
    "incomplete": _incomplete,
    "failed": _failed,
    "http": _http,
    "drop": _drop,
    "stall": _stall,
    "hang": _hang,
    "multi": _multi,
    "limits": _limits,
    "echo": _echo,
}
