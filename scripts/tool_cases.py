"""The conversations with tools of which `generate_tool_transcripts.py` records transcripts: values, no code that runs.

The fake agent plays them; its scenarios and markers are described in `fake_proto/README.md`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from scripts.generate_chat_transcripts import USAGE

Dialect = Literal["app-server", "proto"]
DIALECTS: tuple[Dialect, ...] = ("app-server", "proto")

Json = dict[str, Any]


class Output(NamedTuple):
    """The client's answer to a call of the last answer, by the call's index there."""

    call: int
    content: Any


Reply = tuple[Output | Json, ...]
"""What the client says to an answer, behind its echo: outputs, and messages as they are."""


class Case(NamedTuple):
    """One conversation: its file's name, what it shows, its first request, and the client's replies."""

    name: str
    about: str
    request: Json
    replies: tuple[Reply, ...] = ()
    proto: bool = True
    """The proto dialect can play it too."""

    @property
    def scenario(self) -> str:
        """The fake agent's scenario, as the first prompt names it."""
        prompt = str(self.request["messages"][-1]["content"])
        return prompt.partition("[[fake:")[2].partition("]]")[0].split(" ")[0] or "none"

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        return DIALECTS if self.proto else ("app-server",)


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PARIS, ROME = "What is the weather in Paris?", "What is the weather in Paris and in Rome?"
SUNNY, WET = "sunny in Paris", "wet in Rome"
ONE, BOTH = (Output(0, SUNNY),), (Output(0, SUNNY), Output(1, WET))
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
SAID = "say='{outputs}'"
"""The fake model's last word: what it was told of its calls."""
OPEN_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "minProperties": 1}
"""Outside of OpenAI's strict subset: it is not closed, and its property may be missing."""


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def function(name: str, *, strict: bool = False) -> Json:
    described = {"name": name, "description": "Say how it is in a city.", "parameters": CITY}
    return {"type": "function", "function": {**described, "strict": True} if strict else described}


WEATHER, TIME, STRICT = function("get_weather"), function("get_time"), function("get_weather", strict=True)
SQL = {"type": "custom", "custom": {"name": "run_sql", "description": "Run one statement."}}
FORBIDDEN = ("exec_command", "mcp__files__read", "client_side")
"""One that Codex swallows, one that it forbids, and one that looks like what we make of those."""


def asked(prompt: str, scenario: str, *tools: Json, **fields: Any) -> Json:
    """The first request of a conversation."""
    offered = {"tools": list(tools or (WEATHER,))}
    return {"model": "codex-5", "messages": [user(f"{prompt} [[fake:{scenario}]]")], **offered, **fields}


def schema(value: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "place", "schema": value}}


LOOPS = (
    Case("single-call", "One call, its output, and the answer.", asked(PARIS, "tool_call"), (ONE,)),
    Case("single-call-streamed", "The same, streamed.", asked(PARIS, "tool_call", **USAGE), (ONE,)),
    Case("parallel-calls", "Two calls of one step.", asked(ROME, f"tool_calls {SAID}"), (BOTH,)),
    Case(
        "parallel-calls-streamed",
        "Two calls of one step, streamed.",
        asked(ROME, f"tool_calls {SAID}", **USAGE),
        (BOTH,),
    ),
    Case(
        "parallel-calls-swapped-outputs",
        "Outputs in another order than their calls are put into the calls' order.",
        asked(ROME, f"tool_calls {SAID}"),
        (BOTH[::-1],),
    ),
    Case("two-rounds", "Two steps with calls.", asked(ROME, f"tool_calls rounds=2 {SAID}"), (BOTH, BOTH)),
    Case("text-before-calls", "Text, then a call.", asked(PARIS, "tool_calls_after_text"), (ONE,)),
    Case(
        "text-before-calls-streamed",
        "Text, then a call, streamed.",
        asked(PARIS, "tool_calls_after_text", **USAGE),
        (ONE,),
    ),
    Case(
        "error-output",
        "An error is an output like any other.",
        asked(PARIS, "tool_call"),
        ((Output(0, "Error: there is no such city"),),),
    ),
    Case(
        "parts-output",
        "An output in two parts.",
        asked(PARIS, "tool_call"),
        ((Output(0, [{"type": "text", "text": "sunny"}, {"type": "text", "text": "and warm"}]),),),
    ),
    Case(
        "image-output",
        "An output with an image.",
        asked(PARIS, "tool_call"),
        (
            (
                Output(
                    0,
                    [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
                ),
            ),
        ),
        proto=False,
    ),
    Case(
        "custom-tool",
        "A custom tool travels as a function with one string, and comes back as a custom call.",
        asked("How many?", """tool_call name=run_sql args='{"input": "select 1;"}'""", SQL),
        ((Output(0, "1"),),),
        proto=False,
    ),
    Case(
        "custom-tool-streamed",
        "A custom call, streamed.",
        asked("How many?", """tool_call name=run_sql args='{"input": "select 1;"}'""", SQL, **USAGE),
        ((Output(0, "1"),),),
        proto=False,
    ),
    Case(
        "forbidden-names",
        "Names that Codex takes for its own reach the model with `client_` in front and come back as they were; "
        "then the model says what it was offered and what it remembers.",
        asked(
            "Use them all.",
            "tool_calls calls=3 name=" + ",".join(f"client_{name}" for name in FORBIDDEN),
            *map(function, FORBIDDEN),
        ),
        (
            (*BOTH, Output(2, "calm in Oslo")),
            (user("What was said? [[fake:echo]]"),),
        ),
        proto=False,
    ),
)
"""What a client sees of its tools when the model does as it should."""

HIDDEN = (
    Case(
        "strict-violation-hidden",
        "A call that breaks a strict schema goes back to the model; the client sees the next one.",
        asked(PARIS, "tool_call_corrected", STRICT),
        (ONE,),
        proto=False,
    ),
    Case(
        "strict-violation-hidden-streamed",
        "The same, streamed.",
        asked(PARIS, "tool_call_corrected", STRICT, **USAGE),
        (ONE,),
        proto=False,
    ),
    Case(
        "strict-violation-handed-on",
        "The third violation of a turn is handed on as it is.",
        asked(PARIS, """tool_call rounds=3 args='{"town": "Paris"}'""", STRICT),
        (ONE,),
        proto=False,
    ),
    Case(
        "strict-violation-beside-a-valid-call",
        "The client sees the valid call; the model gets both outputs, in the order of its calls.",
        asked(ROME, "tool_calls_one_wrong", STRICT),
        ((Output(0, WET),),),
        proto=False,
    ),
    Case(
        "one-call-at-a-time",
        "parallel_tool_calls false: the second call of a step is deferred.",
        asked(ROME, f"tool_calls {SAID}", parallel_tool_calls=False),
        (ONE,),
        proto=False,
    ),
    Case(
        "bad-json",
        "Arguments that are no JSON: the agent tells the model, and the client sees the next call.",
        asked(PARIS, "tool_call_unreadable"),
        (ONE,),
        proto=False,
    ),
    Case(
        "bad-json-never-learned",
        "A model that does not learn: 502.",
        asked(PARIS, """tool_call rounds=3 args='{"city":'"""),
        proto=False,
    ),
    Case(
        "tool-not-offered",
        "A call of a tool that was not offered: the agent tells the model.",
        asked(PARIS, "tool_call name=launch"),
        proto=False,
    ),
    Case(
        "tool-not-offered-beside-a-valid-call",
        "The client sees the call of its tool alone.",
        asked(ROME, f"tool_calls name=launch,get_weather {SAID}"),
        ((Output(0, WET),),),
        proto=False,
    ),
)
"""Calls that the client never sees."""

CHOICES = (
    Case(
        "tool-choice-none",
        "No tool is offered.",
        asked(PARIS, "echo", tool_choice="none"),
    ),
    Case(
        "tool-choice-required",
        "A call, as it was required; what comes after is required too, and is words: 502.",
        asked(PARIS, "tool_call", tool_choice="required"),
        (ONE,),
    ),
    Case(
        "tool-choice-required-not-honoured",
        "Words in place of the required call, twice: 502.",
        asked(PARIS, "text", tool_choice="required"),
    ),
    Case(
        "tool-choice-required-not-honoured-streamed",
        "The same, streamed: nothing of the words is seen.",
        asked(PARIS, "text", tool_choice="required", **USAGE),
    ),
    Case(
        "tool-choice-named",
        "Only the named tool is offered: the model calls the first it has, and that is the second.",
        asked(
            "What time is it in Paris?",
            "tool_call",
            *(WEATHER, TIME),
            tool_choice={"type": "function", "function": {"name": "get_time"}},
        ),
    ),
    Case(
        "tool-choice-allowed-tools",
        "Only the allowed tools are offered, as the model says; it may answer with words.",
        asked(
            "What time is it in Paris?",
            "echo",
            *(WEATHER, TIME),
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "get_time"}}],
                },
            },
        ),
    ),
    Case(
        "json-schema-outside-the-subset",
        "Beside calls: the model is told the schema in words, and its answer is checked.",
        asked(PARIS, """tool_call say='{"city": "Paris"}'""", response_format=schema(OPEN_SCHEMA)),
        (ONE,),
    ),
    Case(
        "json-schema-not-kept",
        "An answer that does not fit, twice: 502.",
        asked(PARIS, "text say='{}'", response_format=schema(OPEN_SCHEMA)),
    ),
)
"""What was asked of the answer and the agent cannot keep by itself."""

REFUSED = (
    Case(
        "output-of-an-unknown-call",
        "An output for a call that was not made: 400.",
        asked(PARIS, "tool_call"),
        ((Output(0, SUNNY), {"role": "tool", "tool_call_id": "call_of_nobody", "content": WET}),),
    ),
    Case(
        "output-missing",
        "No output for the second call: 400.",
        asked(ROME, "tool_calls"),
        ((Output(0, SUNNY),),),
    ),
    Case(
        "output-given-twice",
        "A second output for one call: 400.",
        asked(PARIS, "tool_call"),
        ((Output(0, SUNNY), Output(0, WET)),),
    ),
    Case(
        "output-without-a-call",
        "An output where no call was made: 400.",
        {
            **asked(PARIS, "tool_call"),
            "messages": [{"role": "tool", "tool_call_id": "call_1_0", "content": SUNNY}],
        },
    ),
)
"""Outputs that do not fit their calls."""

CASES: tuple[Case, ...] = (*LOOPS, *HIDDEN, *CHOICES, *REFUSED)
