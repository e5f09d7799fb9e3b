"""The requests of sessions' turns: what a session's agent and its items say is a Responses request, which is parsed and
admitted as any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from codex_proxy.admission.clients import Client
from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.faults import Failure, Fault, bad_request
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.own_tools import toolset_faults
from codex_proxy.core.turn import StoredSession
from codex_proxy.parts.sessions.agents import requested_tool, turn_request
from codex_proxy.parts.sessions.approvals import MAY_NOT_ASK
from codex_proxy.parts.sessions.conversation import MANY_ENTRIES, input_items, message_item
from codex_proxy.parts.sessions.records import SessionStore
from codex_proxy.parts.sessions.sessions import Content, Entry, Session, UserMessage
from codex_proxy.responses.context import read_context
from codex_proxy.responses.prepare import PreparedResponse, prepare_in_context
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.observers import REQUEST_RECORDER
from codex_proxy.runs.whole_history import WholeHistory
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints
from codex_proxy.surfaces.responses.items import ItemDict, web_images
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse

NO_SUBAGENTS: Final = (
    "The agent {} has no subagents in such a session: leave 'multi_agent' out, or set 'enabled' to false."
)
_ANY_MESSAGE: Final[Content] = ({"type": "input_text", "text": "-"},)
"""With which the settings of a session without messages are checked."""


class TurnRequests:
    """Makes the requests of the turns of one server's sessions."""

    def __init__(self, responses: ResponsesService) -> None:
        self.responses = responses

    async def next(self, owner: str, session: Session, store: SessionStore) -> PreparedResponse:
        """Returns the request of the turn that goes on, admitted. Where the agent goes on with its own session, it has
        only what that has not seen; the rest is read if the agent's session cannot go on. Raises `Fault`.
        """
        thread = session.thread
        if thread is None or not thread.item or REQUEST_RECORDER.get() is not None:  # which needs all of it
            return await self._whole(owner, session, store)
        entries = await store.entries_behind(owner, session.id, thread.item)
        if not (entries and isinstance(entries[0].item, UserMessage)):
            return await self._whole(owner, session, store)
        items = input_items(entries)
        # It waits for results, if it goes on.
        new_items = 0 if thread.turn == session.turn else _in_history(items)
        prepared = await self.prepare(owner, session, items, new_items)
        stored = prepared.turn.stored_session
        if stored is None or not stored.before:  # another agent has the turn
            return await self._whole(owner, session, store)

        async def read() -> tuple[HistoryItem, ...]:
            # What the run has done and taken since then is added to it.
            return (await self._whole(owner, session, store, until=entries[-1].id)).turn.history

        return replace(prepared, replay=WholeHistory(read))

    async def _whole(
        self, owner: str, session: Session, store: SessionStore, until: str = ""
    ) -> PreparedResponse:
        """Returns the request with all items of the session, or those up to one."""
        entries = await store.all_entries(owner, session.id)
        if until:
            known = [each.id for each in entries]
            entries = entries[: known.index(until) + 1] if until in known else entries
        items = await beside_the_loop(partial(input_items, entries), long=len(entries) > MANY_ENTRIES)
        thread = session.thread
        taken = -1 if thread is None else _last_of(entries, thread.turn)
        new_items = _in_history(input_items(entries[taken + 1 :])) if taken >= 0 else 0
        return await self.prepare(owner, session, items, new_items)

    async def prepare(
        self, owner: str, session: Session, items: Sequence[Mapping[str, Any]], new_items: int = 0
    ) -> PreparedResponse:
        """Returns the request of a turn, admitted. `new_items`: how many of the last items of its history the agent's
        own session has not seen; 0 if there is none that can go on. Raises `Fault`, which names the session's field.
        """
        responses, client = self.responses, self.responses.clients.by_name(owner)
        context_of_request, now = _parse_context(client, session), responses.clock.epoch()

        def parse_request() -> ParsedResponse:
            return parse(encode_json(turn_request(session.agent, items)), context=context_of_request)

        try:
            parsed = await beside_the_loop(parse_request, long=len(items) > MANY_ENTRIES)
            parsed = replace(parsed, optional_images=_earlier_images(parsed))
            parsed = self._with_tools(parsed, session, client)
            parsed = self._with_stored_session(parsed, session, new_items)
            parsed = self._with_subagents(parsed, session)
            context = await read_context(parsed, None, owner, responses.ids, now)
            return await prepare_in_context(responses, parsed, context, owner, id=session.id, created=now)
        except Fault as fault:
            raise Fault(_in_session(fault.failure, session)) from fault

    def _with_tools(self, parsed: ParsedResponse, session: Session, client: Client) -> ParsedResponse:
        """Returns a turn's request with the agent's own tools, and whether the client is asked. Raises `Fault` for what
        the agent, the turn's sandbox or the key does not allow.
        """
        turn, toolset = parsed.turn, session.agent.toolset
        asks = client.approvals == "ask" and client.has_approver  # else nobody could answer
        if toolset is not None:
            agent = self.responses.runs.services.agent_of(turn)
            for fault in toolset_faults(toolset, agent.own_tools, turn.sandbox, agent.name):
                raise bad_request(fault.message, "tools", "unsupported_by_agent")
            if toolset.asks and not client.has_approver:
                raise Fault(MAY_NOT_ASK)
            asks, turn = toolset.asks, replace(turn, toolset=toolset)
        return replace(parsed, turn=replace(turn, approvals="ask") if asks else turn)

    def _with_stored_session(
        self, parsed: ParsedResponse, session: Session, new_items: int
    ) -> ParsedResponse:
        """Returns a turn's request for which the agent goes on with its own session, or makes one, if the agent stores
        sessions.
        """
        agent = self.responses.runs.services.agent_of(parsed.turn)
        if session.environment["type"] == "none" or "stored_sessions" not in agent.capabilities:
            return parsed
        toolset = parsed.turn.toolset
        asks = parsed.turn.approvals == "ask" and (toolset is None or bool(toolset.asked))
        asks = asks and "sandbox" in agent.capabilities
        if asks and parsed.turn.sandbox != "danger-full-access":
            # Codex does not tell the model's calls on a thread that is opened again, and by them alone is known which
            # command would leave the sandbox.
            return parsed
        stored = StoredSession(session.id)
        if session.thread is not None and session.thread.agent == agent.name:
            id, made_with, before = session.thread.id, session.thread.made_with, session.thread.until
            stored = replace(stored, id=id, made_with=made_with, new_items=new_items, before=before)
        return replace(parsed, turn=replace(parsed.turn, stored_session=stored))

    def _with_subagents(self, parsed: ParsedResponse, session: Session) -> ParsedResponse:
        """Returns the request with the subagents that its turn may have. Raises `Fault` if the agent has none."""
        count = session.agent.subagents
        agent = self.responses.runs.services.agent_of(parsed.turn)
        if count and ("subagents" not in agent.capabilities or parsed.turn.mode != "agent"):
            raise bad_request(NO_SUBAGENTS.format(agent.name), "multi_agent.enabled", "unsupported_by_agent")
        return replace(parsed, turn=replace(parsed.turn, subagents=count))

    async def check_settings(
        self, owner: str, session: Session, messages: Sequence[Content] = ()
    ) -> PreparedResponse:
        """Returns a first turn with these messages, admitted. Raises `Fault` for settings that cannot be served."""
        return await self.prepare(owner, session, [*map(message_item, messages or [_ANY_MESSAGE])])

    def agent_of(self, prepared: PreparedResponse) -> str:
        """Returns the name of the agent that runs a turn."""
        return self.responses.runs.services.agent_of(prepared.turn).name


def of_turn(prepared: PreparedResponse, turn: str) -> PreparedResponse:
    """Returns a request as that of the session's turn with this id: the first one was made before the turn."""
    stored = prepared.turn.stored_session
    if stored is None:
        return prepared
    return replace(prepared, turn=replace(prepared.turn, stored_session=replace(stored, after=turn)))


def _parse_context(client: Client, session: Session) -> ParseContext:
    environment, sandbox = session.environment, session.sandbox_below(client.settings.sandbox)
    if environment["type"] == "none":
        return ParseContext(client.settings, client.catalog, RequestHints(mode="model"))
    hints = RequestHints(mode="agent", workdir=environment["workspace_directory"], sandbox=sandbox)
    return ParseContext(client.settings, client.catalog, hints)


_FIELDS: Final = {"X-Codex-Mode": "environment.type", "X-Codex-Workdir": "environment.workspace_directory"}
"""The fields of a session that become headers of a turn's request."""
_TOOL: Final = re.compile(r"tools\[(\d+)\](\.server_url)?")
"""Matches a tool in a turn's request, and the address of an MCP server; in a session it is in `transport`."""


def _in_session(failure: Failure, session: Session) -> Failure:
    """Returns the failure of a turn's request with the field of the session at fault."""
    param, message = failure.param, failure.message
    for header, field in _FIELDS.items():
        message = message.replace(header, field)
    if param is not None and not param.startswith("input"):
        places = [index for index, tool in enumerate(session.agent.tools) if requested_tool(tool)]

        def in_session(found: re.Match[str]) -> str:
            address = ".transport.server_url" if found[2] else ""
            return f"tools[{places[int(found[1])]}]{address}"

        param = _FIELDS.get(param, "agent." + _TOOL.sub(in_session, param))
    return replace(failure, param=param, message=message)


def _earlier_images(parsed: ParsedResponse) -> frozenset[str]:
    """Returns the web images of earlier turns: one that is gone from the web by now must not fail the turn."""
    newest: list[ItemDict] = []
    for item in reversed(parsed.input_items):
        if not (item.get("role") == "user" or item["type"] == "function_call_output"):
            break
        newest.append(item)
    return frozenset(parsed.web_images.keys() - web_images(newest).keys())


def _in_history(items: Sequence[Mapping[str, Any]]) -> int:
    """Returns how many items of a turn's history these become: a call of an MCP server has its output with it."""
    return len(items) + sum(1 for item in items if item["type"] == "mcp_call")


def _last_of(entries: Sequence[Entry], turn: str) -> int:
    """Returns the place of a turn's last entry; -1 if it has none."""
    return max((place for place, entry in enumerate(entries) if entry.turn == turn), default=-1)
