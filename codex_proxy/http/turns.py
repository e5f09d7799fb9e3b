"""Serves requests for turns in the same steps in every API: admits the turn, runs it, and sends the rendered events,
with the `x-codex-*` headers about how the agent ran it (docs/api.md#headers). Stored responses are run by
`responses/`. Source: docs/contract.md#streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from codex_proxy.admission.images import fetched_bytes
from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.account import AgentModel
from codex_proxy.core.events import DECLINED_HEADER, EMPTY_HEADER, UNCERTAIN_HEADER, EmptyReason, ServedBy
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.items import HistoryMessage
from codex_proxy.core.options import OPTIONS, Option
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn
from codex_proxy.http.app_keys import ADMISSION, CLOCK, KEEPALIVE, RUNS, USAGE
from codex_proxy.http.body import HELD, IGNORED_HEADER
from codex_proxy.http.exchange import (
    TIMINGS,
    LogReader,
    OneRun,
    SampledRuns,
    Source,
    TurnTimings,
    stream_response,
    whole_response,
)
from codex_proxy.http.metrics import METER
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER, REPLY_HEADERS
from codex_proxy.http.sse import SSE, EventStream, stream_slot
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.surfaces.answers.renderer import Renderer
from codex_proxy.surfaces.answers.usage import TurnTokens
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.requests.options import ParsedRequest


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    renderer: Renderer
    ping: Callable[[], bytes]
    """Returns the bytes that keep a silent stream alive."""
    keepalive: bool = True
    start: Callable[[], Awaitable[Source]] | None = None
    """What starts the turn in place of `start_turn`. Raises `Fault`."""
    media_type: str = SSE
    error: Callable[[Failure], Failure] = lambda failure: failure
    """Returns a failure in the words that the API has for it."""


async def serve_turn(
    request: web.Request, parsed: ParsedRequest, timings: TurnTimings, answer: Callable[[Turn], TurnAnswer]
) -> web.StreamResponse:
    """Serves a request for a turn, whole or as a stream. `answer` returns how the admitted turn is answered. Raises
    `Fault` before the first byte.
    """
    note_request(request, parsed)
    turn = await request.app[ADMISSION].admit(
        parsed.turn,
        request[CLIENT],
        parsed.fields,
        model=parsed.model_asked,
        workdir_field=parsed.workdir_param,
        image_fields=parsed.web_images,
        optional_images=parsed.optional_images,
        runs=parsed.runs,
    )
    if turn.history is not parsed.turn.history:
        request[HELD].grow_by(fetched_bytes(parsed.turn, turn))
    note_admitted(request, turn)
    return await answer_turn(request, parsed, turn, answer(turn), timings)


async def answer_turn(
    request: web.Request, parsed: ParsedRequest, turn: Turn, answer: TurnAnswer, timings: TurnTimings
) -> web.StreamResponse:
    """Runs an admitted turn, and answers. Raises `Fault` before the first byte."""
    app, renderer = request.app, answer.renderer
    try:
        with (
            app[USAGE].turn(request[OWNER], billed_model(turn), renderer),
            stream_slot(request) if parsed.stream else nullcontext(),
        ):
            source = await (answer.start() if answer.start else start_turn(request, parsed, turn))

            def headers() -> dict[str, str]:  # a run that starts again no longer continues a session
                estimated = not parsed.stream and renderer.spent.is_estimated
                return agent_headers(
                    app[RUNS].agent, parsed, turn, continued=source.continued, estimated=estimated
                )

            reader = LogReader(source, renderer, timings)
            if not parsed.stream:
                return await whole_response(reader, headers)
            stream = EventStream(request, headers, media_type=answer.media_type)
            keepalive = app[KEEPALIVE] if answer.keepalive else 0.0
            return await stream_response(reader, stream, keepalive=keepalive, comment=answer.ping)
    except Fault as fault:
        raise Fault(answer.error(fault.failure)) from None
    finally:
        request[NOTES] |= ending_notes(timings, renderer.failure, renderer.finish_reasons, renderer.spent)


async def start_turn(
    request: web.Request, parsed: ParsedRequest, turn: Turn, *, remembers: bool = True
) -> Source:
    """Starts the turn (several times for sampled choices) with the MCP tools of this server. `remembers`: the model's
    own items may be kept in the step memory. Raises `Fault`.
    """
    app, owner, runner = request.app, request[OWNER], None
    if turn.forwarded is None:
        turn, tools = await app[ADMISSION].add_server_tools(turn, request[CLIENT], parsed.fields)
        runner = tools.runner
    if parsed.runs == 1:
        return OneRun(await app[RUNS].start(turn, owner, runner=runner, remembers=remembers))
    one_choice = msgspec.structs.replace(turn, choices=1)
    return await _start_samples(app[RUNS], one_choice, parsed.runs, owner, runner)


async def _start_samples(
    scheduler: RunScheduler, turn: Turn, count: int, owner: str, runner: ToolRunner | None
) -> SampledRuns:
    """Starts `count` runs. If one cannot begin, interrupts the others and raises its `Fault`."""
    starting = [asyncio.ensure_future(scheduler.start(turn, owner, runner=runner)) for _ in range(count)]
    try:
        return SampledRuns(await asyncio.gather(*starting))
    except BaseException:
        for task in starting:
            task.cancel()
            task.add_done_callback(_interrupt_started)  # not awaited, since this may be cancelled again
        raise


def _interrupt_started(starting: asyncio.Task[Run]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().interrupt()


# --- what the log and the headers say about a turn ----------------------------------------------


def start_timings(request: web.Request) -> TurnTimings:
    """Starts the timings; upstream, attempts, why an answer is empty, and what the agent was not permitted go into the
    reply headers and the log line.
    """
    # The request holds the timings: functions that held it in turn would keep both until a garbage collection.
    headers, notes = request[REPLY_HEADERS], request[NOTES]

    def on_served(event: ServedBy) -> None:
        headers["x-codex-attempts"] = str(event.attempts)
        notes["attempts"] = event.attempts
        if event.changed:
            headers["x-codex-changed-params"] = ", ".join(event.changed)
        if event.upstream:
            headers["x-codex-upstream"] = event.upstream
            notes["upstream"] = event.upstream

    def on_empty(reason: EmptyReason) -> None:
        headers[EMPTY_HEADER] = reason
        notes["empty"] = reason

    def on_declined(kinds: str) -> None:
        headers[DECLINED_HEADER] = notes["declined"] = kinds

    timings = request[TIMINGS] = TurnTimings(
        request.app[CLOCK], on_served, on_empty, on_declined, counts=request.app.get(METER) is not None
    )
    return timings


def note_request(request: web.Request, parsed: ParsedRequest) -> None:
    """Adds to the log line what the request asks for."""
    agent = request.app[RUNS].agent
    request[NOTES] |= {"model": parsed.model_asked, "stream": parsed.stream, "mode": parsed.turn.mode}
    if agent.members:
        request[NOTES]["agent"] = agent_for(agent, parsed.turn.model).name


def note_admitted(request: web.Request, turn: Turn) -> None:
    """Adds the mode to the log line, and the agent to the reply headers."""
    request[NOTES]["mode"] = turn.mode
    request[REPLY_HEADERS]["x-codex-agent"] = agent_for(request.app[RUNS].agent, turn.model).name


def ending_notes(
    timings: TurnTimings, failure: Failure | None, finish_reasons: tuple[str, ...], spent: TurnTokens
) -> dict[str, object]:
    """Returns the fields of the log line about an answer."""
    notes: dict[str, object] = {"first_ms": timings.first_ms}
    if timings.response_model:
        notes["response_model"] = timings.response_model
    if failure is not None:
        notes["error"] = failure.kind.value
    if reasons := tuple(dict.fromkeys(finish_reasons)):
        notes["finish_reason"] = reasons[0] if len(reasons) == 1 else reasons
        notes["finish_source"] = timings.ended_by
    if (reported := spent.reported) is not None:
        notes["input_tokens"], notes["output_tokens"] = reported.input, reported.output
        notes["emission_trigger"] = spent.trigger
    return notes


class _TurnFacts(NamedTuple):
    agent: Agent
    parsed: ParsedRequest
    turn: Turn
    continued: bool
    estimated: bool
    able: Collection[str]
    """The agent's capabilities."""

    @property
    def model(self) -> AgentModel:
        wanted = self.turn.model.removeprefix(f"{self.agent.name}{MODEL_SEPARATOR}")
        for model in self.agent.models():
            if model.id == wanted or (not wanted and (model.is_default or model.serves_unnamed)):
                return model
        return AgentModel(id=wanted)

    def names_unknown_model(self) -> bool:
        ids = {model.id for model in self.agent.models()}
        named = self.turn.model
        return bool(named) and not {named, named.removeprefix(f"{self.agent.name}{MODEL_SEPARATOR}")} & ids


def agent_headers(
    agent: Agent, parsed: ParsedRequest, turn: Turn, *, continued: bool = False, estimated: bool = False
) -> dict[str, str]:
    """Returns the headers of an answer. `continued`: see `Source`; `estimated`: whether its tokens are known to be."""
    agent = agent_for(agent, turn.model)
    facts = _TurnFacts(agent, parsed, turn, continued, estimated, agent.capabilities)
    return {name: value for name, make in _HEADERS.items() if (value := ", ".join(make(facts)))}


def _ignored_fields(facts: _TurnFacts) -> Iterator[str]:
    names = facts.parsed.fields.options
    named = [] if "sampling" in facts.able else [*facts.turn.sampling]
    named += facts.parsed.ignored
    if facts.parsed.asked or _optional_values(facts.turn) != _UNASKED:
        named += [names.get(option.field, "") for option in _options_without_effect(facts)]
    if "model_choice" not in facts.able and facts.names_unknown_model():
        named.append(names["model"])
    return filter(None, dict.fromkeys(named))


def _options_without_effect(facts: _TurnFacts) -> Iterator[Option]:
    able, values = _abilities(facts), msgspec.structs.asdict(facts.turn)
    for option in _OPTIONAL:
        value, default = values[option.field], _DEFAULTS[option.field]
        asked = option.field in facts.parsed.asked or (value != default and value not in option.harmless)
        unable = able.isdisjoint(option.needs) or (option.field == "effort" and not _takes_effort(facts))
        if asked and unable and (not option.only_with or values[option.only_with]):
            yield option


def _takes_effort(facts: _TurnFacts) -> bool:
    """Whether an agent that has efforts has the turn's."""
    return "effort" in facts.able or facts.turn.effort in (None, *facts.model.efforts)


def _abilities(facts: _TurnFacts) -> set[str]:
    """Returns the agent's capabilities, as far as the turn's model has them."""
    able, model = set[str](facts.able), facts.model
    if model.efforts:
        able.add("effort")
    if not model.verbosity:
        able.discard("verbosity")
    return able


_OPTIONAL: Final = tuple(each for each in OPTIONS if each.needs and each.field not in ("model", "sampling"))
_optional_values: Final = attrgetter(*(option.field for option in _OPTIONAL))
_PLAIN: Final = Turn(model="", history=())
_UNASKED: Final = _optional_values(_PLAIN)
_DEFAULTS: Final = msgspec.structs.asdict(_PLAIN)


def _history_changes(facts: _TurnFacts) -> Iterator[str]:
    if "history" not in facts.able:
        if not facts.continued and _history_becomes_text(facts):
            yield "flattened"
    elif "system_prompt" not in facts.able and any(map(_is_instruction, facts.turn.history)):
        yield "system-as-user"


def _history_becomes_text(facts: _TurnFacts) -> bool:
    history, first = facts.turn.history, 0
    if "system_prompt" in facts.able:
        while first < len(history) and _is_instruction(history[first]):
            first += 1
    return len(history) - first > 1


def _is_instruction(item: object) -> bool:
    return isinstance(item, HistoryMessage) and item.role == "developer"


def _changed_mode(facts: _TurnFacts) -> Iterator[str]:
    if facts.turn.tools and "client_tools" in facts.able and "plain_model" not in facts.able:
        yield "agent"


def _uncertain_fields(facts: _TurnFacts) -> Iterator[str]:
    if facts.turn.forwarded is not None:
        return  # the client gets the upstream's own answer
    if facts.estimated or "exact_usage" not in facts.able:
        yield "usage"
    if "stop_reasons" not in facts.able:
        yield "finish_reason"
    if facts.turn.mode == "agent" and "sandbox" not in facts.able:
        yield "sandbox"


_HEADERS: Final[dict[str, Callable[[_TurnFacts], Iterable[str]]]] = {
    IGNORED_HEADER: _ignored_fields,
    "x-codex-history": _history_changes,
    "x-codex-mode": _changed_mode,
    UNCERTAIN_HEADER: _uncertain_fields,
    "x-codex-passed-params": attrgetter("parsed.passed_on"),
}
"""What yields the words of each header; one without words is left out."""
