"""Who asks, and what they may do: the operator's settings, narrowed by the limits of a key.

In: the keys in force, and the digest of a request's key. Out: a `Client`. Raises `Fault` INVALID_API_KEY for a key that
is not one of this server's. The headers are read by `http.middleware.doors`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from codex_proxy.admission.workspace import Workspace, narrowed_to
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.keys import NOBODY, Key, KeySet
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import SANDBOXES, Turn
from codex_proxy.surfaces.chat.parse import ChatSettings
from codex_proxy.surfaces.messages.parse import MessagesSettings
from codex_proxy.surfaces.models import ModelCatalog, resolve
from codex_proxy.surfaces.responses.parse import ResponsesSettings


class Keys(Protocol):
    """Where keys come from."""

    trouble: str | None
    """Why those in force are not the newest ones; None where they are."""

    def current(self) -> KeySet:
        """The keys in force: the same object as long as they are the same."""
        ...


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """One client of the server, and what it may do."""

    name: str
    """The owner of what it stores: its key's name, or `local` where no key is wanted."""
    chat: ChatSettings
    responses: ResponsesSettings
    messages: MessagesSettings
    workspace: Workspace
    rpm: int
    """Requests a minute; 0 for any number."""
    concurrency: int
    """Requests at once; 0 for any number."""
    models: frozenset[tuple[str, str | None]] | None = None
    """The agent's names of models, each with the one effort that is allowed (None: any). None: every model."""
    mcp: bool = True
    """Whether its turns get the tools of MCP servers, where there are any."""

    def allows(self, turn: Turn) -> bool:
        """Whether it may ask for the turn's model with the turn's effort."""
        return self._allows(turn.model, turn.effort)

    def lists(self, name: str, catalog: ModelCatalog) -> bool:
        """Whether this name is one of a model that it may ask for. Raises `Fault` MODEL_NOT_FOUND."""
        resolved = resolve(name, catalog)
        return self._allows(resolved.agent_model, resolved.effort)

    def allows_some_effort(self, model: str) -> bool:
        """Whether it may ask for the agent's model of this name in any way."""
        return self.models is None or any(model == allowed for allowed, _ in self.models)

    def _allows(self, model: str, effort: str | None) -> bool:
        return self.models is None or (model, None) in self.models or (model, effort) in self.models


def mcp_not_allowed(param: str) -> Fault:
    message = "This key may not use MCP servers: leave them out of 'tools', or take another key."
    return Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message, param=param))


def model_not_allowed(asked: str) -> Fault:
    message = (
        f"This key may not ask for the model '{excerpt(asked)}'. GET /v1/models lists those that it may."
    )
    return Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message, param="model"))


class Clients:
    """Everybody who may come in. `everybody` is what may be done where no key narrows it."""

    def __init__(self, keys: Keys, everybody: Client, catalog: ModelCatalog) -> None:
        self._source = keys
        self.everybody = everybody
        self._catalog = catalog
        self._made_of: KeySet | None = None
        self._clients: dict[str, Client] = {}

    @property
    def wanted(self) -> bool:
        """Whether a request needs a key."""
        return self._source.current().wanted

    @property
    def count(self) -> int:
        """How many there may be, each with a name of its own."""
        return max(1, len(self._source.current().keys))

    @property
    def trouble(self) -> str | None:
        """Why the keys in force are not those of the file; None where they are."""
        return self._source.trouble

    def knows(self, digest: str) -> bool:
        """Whether the key of this digest is one of the server's."""
        return self._source.current().of(digest) is not None

    def holding(self, digest: str | None) -> Client:
        """Who comes with the key of this digest (None: with no key). Raises `Fault` INVALID_API_KEY."""
        keys = self._source.current()
        if not keys.wanted:
            return self.everybody
        if digest is None:
            raise _refused(
                "This server wants a key: send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`."
            )
        key = keys.of(digest)
        if key is None:
            raise _refused("The key is not one of this server's.")
        return self._of(keys, key)

    def named(self, name: str) -> Client:
        """Whoever has this name now. Raises `Fault` INVALID_API_KEY where nobody has it any more."""
        keys = self._source.current()
        if not keys.wanted and name == NOBODY:
            return self.everybody
        key = keys.named(name)
        if key is None:
            raise _refused("The key that this was asked with is not one of this server's any more.")
        return self._of(keys, key)

    def _of(self, keys: KeySet, key: Key) -> Client:
        if self._made_of is not keys:
            self._made_of, self._clients = keys, {}
        client = self._clients.get(key.name)
        if client is None:
            client = self._clients[key.name] = narrowed(self.everybody, key, self._catalog)
        return client


def narrowed(everybody: Client, key: Key, catalog: ModelCatalog) -> Client:
    """What is left for a key of what everybody may."""
    sandbox = everybody.chat.sandbox
    if key.sandbox is not None:
        sandbox = min(sandbox, key.sandbox, key=SANDBOXES.index)
    workspace = narrowed_to(everybody.workspace, key.roots) if key.roots else everybody.workspace
    # Several may have keys, and what is stored is not everybody's.
    workspace = msgspec.structs.replace(workspace, confine_reads=True)
    tools = "never" if key.plain_model else everybody.chat.builtin_tools
    limits = {"sandbox": sandbox, "builtin_tools": tools, "workdir": workspace.folder}
    return Client(
        name=key.name,
        chat=msgspec.structs.replace(everybody.chat, **limits),
        responses=msgspec.structs.replace(everybody.responses, **limits),
        messages=msgspec.structs.replace(everybody.messages, **limits),
        workspace=workspace,
        rpm=key.rpm or everybody.rpm,
        concurrency=key.concurrency or everybody.concurrency,
        models=_allowed(key.models, catalog) if key.models else None,
        mcp=key.mcp,
    )


def _allowed(names: tuple[str, ...], catalog: ModelCatalog) -> frozenset[tuple[str, str | None]]:
    """What the names mean. One that means nothing allows nothing."""
    allowed = set()
    for name in names:
        try:
            resolved = resolve(name, catalog)
        except Fault:
            continue
        allowed.add((resolved.agent_model, resolved.effort))
    return frozenset(allowed)


def _refused(message: str) -> Fault:
    return Fault(Failure(kind=FaultKind.INVALID_API_KEY, message=message))
