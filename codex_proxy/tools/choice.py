"""`tool_choice`, as far as an agent can be made to keep it: by what is offered, and by words.

The agent has no such knob: its model may always choose. So only the tools that may be called are offered, a
developer message says what must be called, and whoever runs the turn checks (`tools/policy.py`).
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.items import HistoryItem, HistoryMessage, TextPart, Tool
from codex_proxy.core.turn import NamedTools, Turn


def may_be_called(turn: Turn) -> tuple[Tool, ...]:
    """The tools that the agent is to be offered for this turn."""
    if turn.tool_choice == "none":
        return ()
    if isinstance(turn.tool_choice, NamedTools):
        return tuple(tool for tool in turn.tools if tool.name in turn.tool_choice.names)
    return turn.tools


def must_call(turn: Turn) -> bool:
    """Whether an answer without a call is not what the client asked for."""
    if isinstance(turn.tool_choice, NamedTools):
        return turn.tool_choice.required
    return turn.tool_choice == "required"


def with_tool_choice(turn: Turn, *, again: bool = False) -> Turn:
    """The turn with what its model must be told of the choice, and only the tools that may be called.

    `again`: the model was told once already and did not listen.
    """
    tools = may_be_called(turn)
    if tools is turn.tools and not must_call(turn):
        return turn
    history: tuple[HistoryItem, ...] = turn.history
    if must_call(turn):
        names = ", ".join(f"`{tool.name}`" for tool in tools)
        words = f"Call one of these tools now: {names}." if len(tools) > 1 else f"Call the tool {names} now."
        words += " Do not answer with text."
        if again:
            words = "Your last answer had no tool call, and was thrown away. " + words
        history = (*history, HistoryMessage("developer", (TextPart(words),)))
    return msgspec.structs.replace(turn, tools=tools, history=history)
