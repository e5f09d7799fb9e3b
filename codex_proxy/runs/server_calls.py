"""Runs a turn's calls that this server answers (MCP tools): a task each, cancelled at the turn's end. Where the turn's
toolset says so, the client is asked before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from codex_proxy.agents.dialect import Decision
from codex_proxy.core.events import ApprovalRequested, ToolCallRequested
from codex_proxy.core.interfaces import keep_until_done
from codex_proxy.core.items import ActionDetails, HistoryCall, HistoryItem, HistoryOutput, TextPart, Tool
from codex_proxy.core.turn import Toolset, Turn
from codex_proxy.tools.policy import ServerCall, ToolOutput, call_events, output_events

if TYPE_CHECKING:
    from codex_proxy.runs.run import Run

log = structlog.get_logger(__name__)

TOOL_BROKEN = ToolOutput(
    (TextPart("The tool could not be run: the server failed in an unforeseen way."),),
    "The tool could not be run: the server failed in an unforeseen way. Its log has the reason.",
    failed=True,
)
NOT_REGISTERED = "The tool is not a registered MCP tool of this server any more, so the call was not made."
TOOL_GONE = ToolOutput((TextPart(NOT_REGISTERED),), NOT_REGISTERED, failed=True)


NOT_APPROVED = "The user has not approved this call."


class ToolRunner(Protocol):
    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        """Runs a tool within a time limit; a failure is an output with `failed`. `arguments` may be invalid JSON."""


Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class ServerCalls:
    """The calls of one turn. `spawn` starts a task that is awaited when the server stops."""

    def __init__(self, runner: ToolRunner | None, spawn: Spawn) -> None:
        self.runner = runner
        self._spawn = spawn
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[str, ServerCall] = {}
        """The calls of which the client is asked, by the ids of the questions."""

    def begin(self, run: Run, calls: Iterable[ServerCall]) -> None:
        """Starts the calls, or asks about them; each output goes to `run.on_tool_output`."""
        for call in calls:
            question = question_about(call, run.turn.toolset)
            if question is None:
                self.begin_work(self._run_call(run, call))
            else:
                self._asked[question.request_id] = call
                run.add_events([question])

    def decide(self, run: Run, request_id: str, decision: Decision) -> bool:
        """Runs a call of which the client was asked, or gives the agent the denial. Returns whether the question was
        about one.
        """
        call = self._asked.pop(request_id, None)
        if call is not None:
            work = self._run_call(run, call) if decision.approve else self._deny(run, call, decision.message)
            self.begin_work(work)
        return call is not None

    def begin_work(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts other work, cancelled at the turn's end too."""
        keep_until_done(self._tasks, self._spawn(work))

    def cancel(self) -> None:
        """Cancels all tasks but the calling one."""
        self._asked.clear()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def run_approved(self, run: Run, turn: Turn) -> Turn:
        """Runs the history's approved calls; returns the turn with their outputs."""
        outputs = await asyncio.gather(
            *(self._run_approved_call(run, call, request, turn) for call, request in approved_calls(turn))
        )
        return msgspec.structs.replace(turn, history=with_outputs(turn.history, outputs))

    async def _run_approved_call(
        self, run: Run, call: HistoryCall, request_id: str, turn: Turn
    ) -> HistoryOutput:
        request = ToolCallRequested(call.call_id, call.call_id, call.name, call.arguments)
        tool = next((tool for tool in turn.tools if tool.name == call.name and tool.mcp is not None), None)
        if tool is None:
            return HistoryOutput(call.call_id, TOOL_GONE.parts)
        run.add_events(call_events(request, tool, approved_by=request_id))
        output = await self._run_tool(tool, call.arguments)
        run.add_events(output_events(request, output))
        return HistoryOutput(call.call_id, output.parts)

    async def _deny(self, run: Run, call: ServerCall, words: str) -> None:
        text = words or NOT_APPROVED
        run.on_tool_output(call.request.request_id, ToolOutput((TextPart(text),), text, failed=True))

    async def _run_call(self, run: Run, call: ServerCall) -> None:
        run.on_tool_output(call.request.request_id, await self._run_tool(call.tool, call.request.arguments))

    async def _run_tool(self, tool: Tool, arguments: str) -> ToolOutput:
        if self.runner is None:
            return TOOL_GONE
        try:
            return await self.runner.run(tool, arguments)
        except Exception:
            log.exception("tool_internal_error")
            return TOOL_BROKEN


def question_about(call: ServerCall, toolset: Toolset | None) -> ApprovalRequested | None:
    """Returns what the client is asked before a call of an MCP server; None if it is not asked."""
    request, origin = call.request, call.tool.mcp
    if toolset is None or origin is None or not toolset.asks_mcp(origin.server_label, origin.name):
        return None
    details = ActionDetails(server=origin.server_label, tool=origin.name, arguments=request.arguments)
    text, item = f"{origin.server_label}.{origin.name}", request.item_id or request.call_id
    id = f"mcp_call:{request.request_id}"
    return ApprovalRequested(id, "mcp", text, details, item_id=item, of_server=True)


def approved_calls(turn: Turn) -> list[tuple[HistoryCall, str]]:
    """Returns approved calls that were not run, with their approvals' ids."""
    waiting = {
        item.call_id: item.approved_by
        for item in turn.history
        if isinstance(item, HistoryOutput) and item.approved_by is not None
    }
    if not waiting:
        return []  # of nearly every turn
    calls = {item.call_id: item for item in turn.history if isinstance(item, HistoryCall)}
    return [(calls[call_id], request) for call_id, request in waiting.items()]


def with_outputs(history: Sequence[HistoryItem], outputs: Iterable[HistoryOutput]) -> tuple[HistoryItem, ...]:
    """Returns the history with these outputs in place of the empty ones (`approved_by`) of approved calls."""
    by_id = {output.call_id: output for output in outputs}
    return tuple(
        by_id.get(item.call_id, item)
        if isinstance(item, HistoryOutput) and item.approved_by is not None
        else item
        for item in history
    )
