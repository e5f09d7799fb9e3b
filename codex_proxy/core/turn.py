"""A `Turn`: what a client asks for, whichever API the request came through. This module defines only data types and
constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.core.items import HistoryItem, Tool

Mode = Literal["model", "agent"]
"""`model`: the model answers without the agent's own prompt and tools (the "plain model"). `agent`: the agent works
in its folder with its own tools."""

Sandbox = Literal["read-only", "workspace-write", "danger-full-access"]

SANDBOXES: Final[tuple[Sandbox, ...]] = get_args(Sandbox)
"""The sandboxes, from the narrowest to the widest."""


MODEL_SEPARATOR: Final = "/"
"""Separates the agent's name from the model's in `NAME/MODEL`, the full name of a model, if the server has several
agents."""


class NamedTools(msgspec.Struct, frozen=True):
    """A `tool_choice` that names the only tools that the model may call. `required`: the model must call one of
    them.
    """

    names: tuple[str, ...]
    required: bool = False


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTools


HOPS_HEADER: Final = "X-Codex-Hops"
"""The request header with the servers like this one that a request has passed through (`Origin.hops`)."""


class Origin(msgspec.Struct, frozen=True):
    """Where a request came from. Only an agent that sends the request on to another server (an upstream) uses it."""

    hops: tuple[str, ...] = ()
    """The codex-proxy servers through which the request has already come, oldest first."""
    key: str = ""
    """The client's own API key; empty unless the settings say that it is passed on."""
    headers: Mapping[str, str] = {}
    """The headers, by lower-case name, that the settings pass on to some upstream."""
    agents: frozenset[str] | None = None
    """The names of the agents that the client may use; None for all. An upstream's fallback is one of them."""

    def __repr__(self) -> str:
        return f"Origin(hops={self.hops!r})"


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A Chat Completions request that is sent to the agent's model server unchanged, and whose answer is sent to
    the client unchanged, because it needs nothing that only this server can do.
    """

    fields: Mapping[str, msgspec.Raw]
    """The fields of the request's JSON object, each as the client wrote it."""
    stream: bool
    include_usage: bool
    """Whether the client asked for the usage in its stream."""
    model_asked: str
    """The client's name of the model. The answer has this name, even if the model server calls the model something
    else."""

    def __repr__(self) -> str:
        return f"ForwardedRequest(stream={self.stream!r})"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client: everything that an agent needs to know, independent of HTTP. The agent uses its own
    default if `effort`, `summary`, `verbosity` or `service_tier` is None. Model calls of a turn are called steps.
    """

    owner: str = ""
    """The owner of the turn: the name of the client's key. The scheduler sets it. What an agent keeps of a turn may be
    used for turns of the same owner only."""
    model: str
    """The agent's name of the model; empty for the agent's default."""
    history: tuple[HistoryItem, ...]
    """All items of the conversation, oldest first, the newest message last."""
    mode: Mode = "agent"
    """`model`: the model answers without the agent's own prompt and tools. `agent`: the agent works in `workdir`
    with its own tools.
    """
    effort: str | None = None
    summary: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    tools: tuple[Tool, ...] = ()
    """The tools that the model may call besides the agent's own: those of the client, and MCP tools that this
    server runs.
    """
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    web_search: bool = False
    """Whether the model is offered the agent's own web search, which its provider runs."""
    max_server_steps: int = 25
    """The number of steps whose MCP calls this server runs. Calls of later steps are not run: their output says
    that the limit is reached, and that the model should answer.
    """
    max_server_calls: int | None = None
    """The number of MCP calls that this server runs in the whole turn; further calls get the same output. None for
    any number.
    """
    output_schema: msgspec.Raw | None = None
    """A JSON schema that the answer's text must follow; None if there is none."""
    workdir: str = ""
    """The folder in which the agent's commands run. Admission makes the path absolute; if it is empty, because the
    client names no folder, admission sets the default folder.
    """
    sandbox: Sandbox = "read-only"
    """What the agent's commands may do, unless `permissions` says otherwise."""
    confine_reads: bool = False
    """Whether the agent's commands must not read this server's stored data. Not every agent can enforce that."""
    permissions: str | None = None
    """What the agent's commands may do, by the agent's own name for it; None: as `sandbox` says. Only the code of
    an agent sets this, never a request.
    """
    choices: int = 1
    """The number of choices of the answer (OpenAI's `n`)."""
    stop: tuple[str, ...] = ()
    """Stop sequences: the answer ends before the first of them."""
    reports_stop: bool = False
    """Whether the client learns which stop sequence has ended the answer. This server then looks for them itself,
    since a model server does not say which one it has met."""
    max_tokens: int | None = None
    """The maximum number of output tokens; None for no limit."""
    json_object: bool = False
    """Whether the answer's text must be a JSON object. If so, the model is instructed accordingly and its answer is
    checked."""
    origin: Origin = Origin()
    """Where the request came from."""
    instructions_in_outputs: bool = False
    """Whether developer messages directly after tool outputs may be put into the last of these outputs, so that a
    session of the agent that waits for the outputs can continue."""
    sampling: Mapping[str, Any] = {}
    """The sampling parameters of the request (`temperature`, `seed`, ...) by name, with the client's values. Agents
    that cannot set them ignore them."""
    passed_fields: Mapping[str, msgspec.Raw] = {}
    """Fields of the request that no other attribute of the turn represents, unchanged. Only agents with the
    capability `forwarding` use them."""
    forwarded: ForwardedRequest | None = None
    """The whole request, if it is sent to the agent's model server unchanged; the turn then has no history, tools
    or schema. None for any other turn.
    """


def without_content(turn: Turn) -> Turn:
    """Returns the turn without its history, tools and schema, and so small enough to be kept after the turn has
    ended.
    """
    return msgspec.structs.replace(turn, history=(), tools=(), output_schema=None, forwarded=None)
