"""The requests of the clients: ordinary ones, faults of the agent by name, and hostile bodies.

Everything here is made from a `random.Random`, so that a run with the same seed sends the same requests. Every request
of a turn contains a nonce, with which its answer is compared (`answers`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from scripts.torture_lib.answers import Api, Expected

Body = dict[str, Any]

EXACT_TEXT_SCENARIOS = ("text", "text", "text", "no_deltas", "reasoning", "usage_missing")
"""Scenarios of the fake agent whose answer is exactly the text in the marker."""
SCENARIOS = (
    *(
        "count",
        "refusal",
        "unicode",
        "multi_message",
        "activity",
        "course",
        "revised_text",
        "truncation",
        "empty",
    ),
    *("error_500", "error_rate_limit", "error_mid_text", "content_filter", "quota"),
    *("retry_after_text_same", "retry_after_text_different"),
)
FAULTS = (
    *(
        "crash",
        "eof_without_end",
        "torn",
        "hang",
        "deaf",
        "close_stdout",
        "garbage",
        "bad_utf8",
        "unknown_events",
    ),
    *("strangers", "wrong_types", "duplicate", "repeat", "split", "joined", "stderr_flood"),
    *("grandchild,crash", "plain_grandchild,crash", "deaf,ignore_sigterm,grandchild"),
)
"""Faults of the fake agent; see fake_proto/README.md."""
HEAVY_FAULTS = (
    *("text misbehave=big_line bytes=16000000", "text misbehave=endless bytes=20000000 at=2"),
    *("text misbehave=flood n=20000", "count n=20000 size=4", "count n=8 size=1000000"),
    *(
        "activity times=2000 misbehave=unended",
        "reasoning times=500",
        "activity times=1000 misbehave=same_ids",
    ),
    *(
        "tool_calls calls=3000",
        "tool_calls calls=1000 misbehave=same_ids",
        "tool_calls misbehave=crash code=137 at=9",
    ),
    "activity times=50 misbehave=torn at=120",
)
"""Markers for long lines, open items, many calls, a repeated id, and an end in the middle of an item."""
EVIL = (
    *(
        "good",
        "good",
        "good",
        "half",
        "reset",
        "drip",
        "done_alone",
        "idle_bytes",
        "idle_bytes",
        "wrong_length",
    ),
    *(
        "long_length",
        "huge_headers",
        "no_http",
        "not_json",
        "bad_utf8",
        "null_choices",
        "wrong_types",
        "error_event",
    ),
)
"""Scenarios of the evil upstream; see `evil_upstream`."""
HEAVY_EVIL = (
    *(
        "flood",
        "spaces",
        "huge_event",
        "blank_lines",
        "nameless_calls",
        "many_calls",
        "deep",
        "thoughts",
        "searches",
    ),
)
"""Scenarios of the evil upstream with long answers, which are therefore rare."""
HEAVY_SHARE = 0.15
"""The share of heavy scenarios among the requests to the evil upstream."""
TOOL_SCENARIOS = (
    "tool_call",
    "tool_calls",
    "tool_calls_after_text",
    "tool_call_unreadable",
    "tool_calls_one_wrong",
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}


@dataclass(frozen=True)
class Question:
    """A request for a turn: its API, its body, and what is expected of the answer."""

    api: Api
    body: Body
    expected: Expected

    @property
    def path(self) -> str:
        return PATHS[self.api]

    def with_fields(self, **fields: Any) -> Question:
        return replace(self, body=self.body | fields)

    def with_expected(self, **fields: Any) -> Question:
        """Returns the request with other expectations of its answer."""
        return replace(self, expected=replace(self.expected, **fields))


class Questions:
    """Makes requests for the models of one server. `evil`: the models of the evil upstream, if it has one."""

    def __init__(self, random: Random, models: Sequence[str], evil: Sequence[str] = ()) -> None:
        self._random = random
        self._models = models
        self._evil = evil

    def nonce(self) -> str:
        return f"nonce-{self._random.getrandbits(64):016x}"

    def ordinary(self, api: Api, *, faulty: bool = False) -> Question:
        """Returns a request for a text or a call; with `faulty`, of an agent that fails in some way."""
        random, nonce = self._random, self.nonce()
        if random.random() < 0.15:
            text = f"{nonce} [[fake:{random.choice(TOOL_SCENARIOS)}]]"
            question = self.question_for(api, text, Expected(nonce))
            return question.with_fields(tools=[tool(api, strict=random.random() < 0.5)])
        scenario = random.choice((*EXACT_TEXT_SCENARIOS, *SCENARIOS))
        words = " ".join([nonce, *(f"word{number}" for number in range(random.randrange(12)))])
        fault = f" misbehave={random.choice(FAULTS)} at={random.randrange(12)}" if faulty else ""
        expected_text = words if scenario in EXACT_TEXT_SCENARIOS and not faulty else None
        question = self.question_for(
            api,
            f"{nonce} [[fake:{scenario} say='{words}' message='{nonce}'{fault}]]",
            Expected(nonce, expected_text),
        )
        if api == "chat":
            more: Body = {"n": 2} if random.random() < 0.2 else {}
            more |= {"stop": ["letter", "\n\n"]} if random.random() < 0.1 else {}
            return question.with_fields(**more)
        return question

    def of_evil_agent(self, api: Api) -> Question:
        """Returns a request to an agent that floods the server with lines, items and calls."""
        nonce = self.nonce()
        text = f"{nonce} [[fake:{self._random.choice(HEAVY_FAULTS)}]]"
        return self.question_for(api, text, Expected(nonce)).with_fields(tools=[tool(api, strict=False)])

    def of_evil_upstream(self, api: Api) -> Question:
        """Returns a request to the evil upstream, mostly for something evil."""
        is_heavy = self._random.random() < HEAVY_SHARE
        nonce, scenario = self.nonce(), self._random.choice(HEAVY_EVIL if is_heavy else EVIL)
        expected_text = f"{nonce} and nothing else" if scenario in ("good", "idle_bytes") else None
        text = f"[[evil:{scenario} {nonce}]]"
        question = self.question_for(api, text, Expected(nonce, expected_text))
        return question.with_fields(model=self._random.choice(self._evil))

    def question_for(self, api: Api, text: str, expected: Expected) -> Question:
        """Returns a request with this text to any model, for a stream or for a whole answer."""
        body: Body = {"model": self._random.choice(self._models), "stream": self._random.random() < 0.6}
        if api == "responses":
            return Question(api, {**body, "input": text}, expected)
        if api == "messages":
            body["max_tokens"] = 4096
        return Question(api, {**body, "messages": [{"role": "user", "content": text}]}, expected)


def tool(api: Api, *, strict: bool) -> Body:
    """Returns the tool `get_weather` in this API's form."""
    if api == "messages":
        return {"name": "get_weather", "input_schema": WEATHER}
    function = {"name": "get_weather", "parameters": WEATHER, "strict": strict}
    if api == "responses":
        return {"type": "function", **function}
    return {"type": "function", "function": function}


def with_image(random: Random, megabytes: int) -> Body:
    """Returns a chat request with an image of this size, which the server may refuse."""
    data = random.randbytes(64).hex() * (megabytes * 8192)
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [{"type": "text", "text": "[[fake:text]]"}, part]
    return {"model": "codex-5", "messages": [{"role": "user", "content": content}]}


@cache
def hostile_bodies() -> tuple[bytes, ...]:
    """Returns chat bodies that are cheap to send and were expensive to check, of about half a megabyte at most."""
    mixed = [number if number % 2 else str(number) for number in range(22_000)]
    draft_04 = {"$schema": "http://json-schema.org/draft-04/schema#", "enum": mixed}
    anchors = {
        "$defs": {f"d{number}": {"$anchor": f"a{number}"} for number in range(400)},
        "allOf": [{"$ref": f"#a{number}"} for number in range(400)],
    }
    dynamic = {
        "$defs": {f"d{number}": {"$dynamicAnchor": f"a{number}"} for number in range(400)},
        "allOf": [{"$dynamicRef": f"#a{number}"} for number in range(400)],
    }
    doubling = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(40)}
    doubled = {"$defs": {**doubling, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"}
    pattern = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^(a+)+$"}}}
    nested: Any = {"type": "string"}
    for _ in range(400):
        nested = {"type": "object", "properties": {"a": nested}}
    schemas = (draft_04, anchors, dynamic, doubled, pattern, nested)
    return (
        *(_encode(_body_with_format(schema)) for schema in schemas),
        *(_encode(_body_with_tools([schema])) for schema in schemas),
        _encode(_body_with_tools([_large_schema(number) for number in range(128)])),
        _encode({**_chat_body(), "stop": ["a" * 900_000 + end for end in "bcde"]}),
        _encode({**_chat_body(), "messages": [{"role": "user", "content": "\\" * 32_768}]}),
        b'{"model": "codex-5", "messages": ' + b"[" * 100_000,
        b'{"model": "codex-5", "messages": [' + b"1," * 200_000 + b"1]}",
    )


def _chat_body() -> Body:
    return {"model": "codex-5", "messages": [{"role": "user", "content": "[[fake:text]]"}]}


def _body_with_format(schema: Body) -> Body:
    format = {"type": "json_schema", "json_schema": {"name": "hostile", "schema": schema}}
    text = f"[[fake:text say={json.dumps(json.dumps({'city': 'a' * 600 + 'b'}))}]]"
    return {**_chat_body(), "messages": [{"role": "user", "content": text}], "response_format": format}


def _body_with_tools(schemas: list[Body]) -> Body:
    functions = [
        {"name": f"tool_{number}", "parameters": schema, "strict": True}
        for number, schema in enumerate(schemas)
    ]
    text = '[[fake:tool_call name=tool_0 args=\'{"city": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}\']]'
    tools = [{"type": "function", "function": each} for each in functions]
    return {**_chat_body(), "messages": [{"role": "user", "content": text}], "tools": tools}


def _large_schema(number: int) -> Body:
    names = [f"property_{number}_{place}" for place in range(400)]
    properties = {name: {"type": "string", "maxLength": 10} for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _encode(body: Body) -> bytes:
    return json.dumps(body).encode()


GARBAGE = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\x1b]0;title\x07 HTTP/1.1\r\nHost: localhost\r\n\r\n",
)
"""Bytes that are almost HTTP, or not HTTP at all."""
