"""A `Turn`: what a client asks for, through whichever API."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.core.items import TOOL_NAMES, HistoryItem, HistoryMessage, Permission, Tool, ToolName

Mode = Literal["model", "agent"]
"""How a turn runs. `model`: as a plain model, without the agent's own prompt and tools. `agent`: in its folder, with
both.
"""

Sandbox = Literal["read-only", "workspace-write", "danger-full-access"]

Approvals = Literal["decline", "ask"]
"""Whether an agent's questions for permission are declined, or passed on to the client."""

SANDBOXES: Final[tuple[Sandbox, ...]] = get_args(Sandbox)
"""The sandboxes from the narrowest to the widest."""


MODEL_SEPARATOR: Final = "/"
"""Separates agent and model, if there are several agents."""


class NamedTools(msgspec.Struct, frozen=True):
    """A `tool_choice` of these tools only. `required`: one must be called."""

    names: tuple[str, ...]
    required: bool = False


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTools


HOPS_HEADER: Final = "X-Codex-Hops"
"""The request header with the servers like this one that it has passed through."""


class Origin(msgspec.Struct, frozen=True):
    """Where a request came from, for an agent that sends it on."""

    hops: tuple[str, ...] = ()
    """The codex-proxy servers it has come through, oldest first."""
    key: str = ""
    """The client's API key, if the settings pass it on."""
    headers: Mapping[str, str] = {}
    """The headers that the settings pass on, by lower-case name."""
    agents: frozenset[str] | None = None
    """The agents that the client may use, also as a fallback; None: all."""

    def __repr__(self) -> str:
        return f"Origin(hops={self.hops!r})"


class StoredSession(msgspec.Struct, frozen=True):
    """The agent's own session of a conversation, which the agent stores, so that it can be continued after the turn:
    here, or with the agent's own program.
    """

    conversation: str
    """The conversation whose session it is: no turn of another one gets it."""
    id: str = ""
    """The agent's id of the session; empty: a new one is made."""
    made_with: str = ""
    """What the session was made with (`fixed_by_session`); if that has changed, a new one is made."""
    new_items: int = 0
    """How many of the last items of the turn's history are new to the session."""
    before: str = ""
    """Names what of the conversation lies before these, all of which the session has seen; the turn's history may lack
    it. Empty: not known.
    """
    after: str = ""
    """Names what the session will have seen when the turn has ended."""


class HostedTools(msgspec.Struct, frozen=True):
    """Tools that the model server itself runs, as the client gave them."""

    tools: Mapping[str, tuple[msgspec.Raw, ...]]
    """The tools that may be called, as JSON, by their type."""
    required: bool = False
    """Whether one of these, or of the turn's other tools, must be called."""
    include: tuple[str, ...] = ()
    """The further fields that the items of these tools have, by the names in `include` of the Responses API."""
    max_calls: int | None = None
    """Maximum calls of these tools; None: the model server's."""


class McpPermissions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The permission policies of an MCP server's tools: that of all but the `others`, which have the other one."""

    server: str
    policy: Permission
    others: tuple[str, ...] = ()


class Toolset(msgspec.Struct, frozen=True, omit_defaults=True):
    """The agent's own tools in a turn: those that run without a question, as far as the sandbox lets them, and those
    before whose calls the client is asked. Both in the order of `TOOL_NAMES`. And of which calls of MCP servers it is
    asked; servers that are not in `mcp` are called without a question.
    """

    allowed: tuple[ToolName, ...] = ()
    asked: tuple[ToolName, ...] = ()
    mcp: tuple[McpPermissions, ...] = ()

    @classmethod
    def of(cls, permissions: Mapping[ToolName, Permission], mcp: Iterable[McpPermissions] = ()) -> Toolset:
        """Returns the toolset of these tools."""
        allowed, asked = (
            tuple(name for name in TOOL_NAMES if permissions.get(name) == each)
            for each in ("always_allow", "always_ask")
        )
        return cls(allowed, asked, tuple(mcp))

    @property
    def asks(self) -> bool:
        """Whether the client may be asked."""
        return bool(self.asked) or any(each.policy == "always_ask" or each.others for each in self.mcp)

    def asks_mcp(self, server: str, tool: str) -> bool:
        """Whether the client is asked before a call of an MCP server's tool."""
        return any(
            (each.policy == "always_ask") is not (tool in each.others)
            for each in self.mcp
            if each.server == server
        )

    @property
    def enabled(self) -> tuple[ToolName, ...]:
        return tuple(name for name in TOOL_NAMES if self.permission(name) is not None)

    def permission(self, name: ToolName) -> Permission | None:
        """Returns the policy of a tool; None for one that the turn does not have."""
        if name in self.asked:
            return "always_ask"
        return "always_allow" if name in self.allowed else None


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A Chat Completions request whose bytes go to the model server, and whose answer to the client, unchanged."""

    fields: Mapping[str, msgspec.Raw]
    """The fields of the body as the client wrote them."""
    stream: bool
    include_usage: bool
    model_asked: str
    """The client's name of the model, which the answer has too."""

    def __repr__(self) -> str:
        return f"ForwardedRequest(stream={self.stream!r})"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request, independent of HTTP. A field that is None: the agent's default."""

    owner: str = ""
    """The name of the client's key, set by the scheduler. What an agent keeps is for this owner only."""
    model: str
    """The agent's name of the model; empty: the agent's default."""
    history: tuple[HistoryItem, ...]
    """The whole conversation, oldest first."""
    mode: Mode = "agent"
    effort: str | None = None
    summary: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    tools: tuple[Tool, ...] = ()
    """The client's tools, and MCP tools that this server runs."""
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    web_search: bool = False
    """Whether the agent's own web search, which its provider runs, is offered."""
    hosted: HostedTools | None = None
    """Further tools that the model server runs, where the agent has the capability of their name."""
    max_server_steps: int = 25
    """Steps whose MCP calls are run here; later ones get an output that tells the model to answer."""
    max_server_calls: int | None = None
    output_schema: msgspec.Raw | None = None
    """A JSON schema for the answer's text."""
    schema_field: str = ""
    """The field with a schema that the model server has to compile, for errors, if any."""
    workdir: str = ""
    """The folder of the agent's commands; admission makes it absolute, and fills in the default."""
    sandbox: Sandbox = "read-only"
    """What the agent's commands may do, unless `permissions` is set."""
    confine_reads: bool = False
    """Whether commands must be kept from reading this server's data; not every agent can do that."""
    subagents: int | None = None
    """How many subagents the agent may have at a time; None: as many as it has by itself. Only sessions set it, and
    show what they do.
    """
    approvals: Approvals = "decline"
    """No request sets it: only sessions of the Agents API can ask their client."""
    toolset: Toolset | None = None
    """The agent's own tools, where the client has chosen them; None: those of its kind of turn."""
    permissions: str | None = None
    """What the agent's commands may do, by the agent's own name; no request sets it."""
    choices: int = 1
    """Number of choices, OpenAI's `n`."""
    stop: tuple[str, ...] = ()
    """Stop sequences: the answer ends before the first."""
    reports_stop: bool = False
    """Whether the client learns which stop sequence ended the answer, which only this server can tell."""
    max_tokens: int | None = None
    """Maximum output tokens; None: no limit."""
    json_object: bool = False
    """Whether the answer must be a JSON object: the model is told, and the answer checked."""
    origin: Origin = Origin()
    instructions_in_outputs: bool = False
    """Whether developer messages after tool outputs may be put into the last output, so that a waiting session can
    continue.
    """
    calls_without_ids: bool = False
    """Whether the client may send calls and their outputs back without the ids of the calls."""
    sampling: Mapping[str, Any] = {}
    """Sampling parameters (`temperature`, `seed`, ...), for agents that can set them."""
    passed_fields: Mapping[str, msgspec.Raw] = {}
    """Fields that no attribute represents, for agents with the capability `forwarding`."""
    stored_session: StoredSession | None = None
    """The agent's own session, for agents that store it; None: nothing outlives the turn."""
    forwarded: ForwardedRequest | None = None
    """The request that goes to the model server unchanged; the turn then has no history, tools or schema."""

    @property
    def user_messages(self) -> tuple[HistoryMessage, ...]:
        """The messages of the user in the history."""
        return tuple(
            item for item in self.history if isinstance(item, HistoryMessage) and item.role == "user"
        )

    @property
    def may_have_subagents(self) -> bool:
        """Whether what the agent says of subagents is read. Else nobody waits for their end, either."""
        return self.subagents != 0 and self.mode == "agent"

    @property
    def must_call(self) -> bool:
        choice = self.tool_choice
        return choice.required if isinstance(choice, NamedTools) else choice == "required"


def fixed_by_session(turn: Turn) -> str:
    """Returns a digest of what a stored session of the agent keeps from its first turn: the instructions at the
    beginning of the history, and the tools.
    """
    instructions = takewhile(
        lambda item: not (isinstance(item, HistoryMessage) and item.role == "user"), turn.history
    )
    return hashlib.sha256(msgspec.json.encode((tuple(instructions), turn.tools))).hexdigest()


def after_a_call(turn: Turn) -> Turn:
    """Returns the turn for its next model call, which need not call a tool any more."""
    if isinstance(turn.tool_choice, NamedTools):
        turn = msgspec.structs.replace(turn, tool_choice=NamedTools(turn.tool_choice.names))
    elif turn.tool_choice == "required":
        turn = msgspec.structs.replace(turn, tool_choice="auto")
    if turn.hosted is not None:
        turn = msgspec.structs.replace(turn, hosted=msgspec.structs.replace(turn.hosted, required=False))
    return turn


def with_items(turn: Turn, items: Sequence[HistoryItem]) -> Turn:
    """Returns the turn with further items behind its history."""
    return msgspec.structs.replace(turn, history=(*turn.history, *items))


def without_content(turn: Turn) -> Turn:
    """Returns the turn without history, tools and schema."""
    return msgspec.structs.replace(turn, history=(), tools=(), output_schema=None, forwarded=None)
