"""The clients of the server, and what each may do: what the operator's settings allow, reduced by the limits of the
client's key.

Input: the valid keys, and the digest of the key in a request. Output: a `Client`. Raises `Fault` INVALID_API_KEY
for a key that is not valid. The module `http.middleware.access` reads the key from the request's headers.

What a client may do includes the folders in which its turns may work. The allowed root folders are resolved once,
symbolic links included; the folder that a request names is resolved before it is compared with them. A turn whose
commands may write is refused in a folder from which they could change the server itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import msgspec

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.keys import NO_KEY_OWNER, Key, KeySet
from codex_proxy.core.safety import Protected, endangered, is_inside
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import MODEL_SEPARATOR, SANDBOXES, Turn
from codex_proxy.surfaces.chat.parse import ChatSettings
from codex_proxy.surfaces.messages.parse import MessagesSettings
from codex_proxy.surfaces.models import ModelCatalog, resolve
from codex_proxy.surfaces.responses.parse import ResponsesSettings


class Workspace(msgspec.Struct, frozen=True):
    """The folders in which a client's turns may work: the default one (`folder`), and all that lie in one of the
    `roots`, whose paths have no symbolic links.
    """

    folder: str
    roots: tuple[str, ...]
    protected: tuple[Protected, ...] = ()
    """Paths that commands must not be able to change. A turn whose commands may write is refused in a folder where
    they could change one of these."""
    confine_reads: bool = False
    """Whether the commands of turns must be kept from reading what the server stores."""


class KeySource(Protocol):
    """The interface of a source of valid keys, such as the keys file."""

    trouble: str | None
    """Why the newest version of the keys could not be read; None if it could."""

    def current(self) -> KeySet:
        """Returns the valid keys. The object is the same as long as the keys do not change."""
        ...


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client of the server: its settings for each API, the folders of its turns, and its limits."""

    name: str
    """The owner of what the client stores: the name of its key, or `local` where no keys are required."""
    chat: ChatSettings
    responses: ResponsesSettings
    messages: MessagesSettings
    workspace: Workspace
    rpm: int
    """The most requests per minute; further ones are refused (RATE_LIMITED). 0: no limit."""
    concurrency: int
    """The most requests at the same time; further ones are refused (CONCURRENCY_EXCEEDED). 0: no limit."""
    models: frozenset[tuple[str, str | None]] | None = None
    """The models that the client may use, by the agent's names, each with the only effort that is allowed (None:
    any effort). None: every model."""
    catalog: ModelCatalog
    """The models by the names that the client may use for them. If the server has several agents, only those that
    the client may use."""
    mcp: bool = True
    """Whether the client's turns get the tools of MCP servers."""

    def allows(self, turn: Turn) -> bool:
        """Whether the client may use the turn's model with the turn's reasoning effort."""
        return self._allows(turn.model, turn.effort)

    def may_use(self, name: str) -> bool:
        """Whether the client may use the model that requests call `name`. Raises `Fault`: MODEL_NOT_FOUND if there
        is none, INVALID_REQUEST if several agents have a model of this name.
        """
        resolved = resolve(name, self.catalog)
        return self._allows(resolved.agent_model, resolved.effort)

    def allows_some_effort(self, model: str) -> bool:
        """Whether the client may use a model with at least one reasoning effort. `model` is the agent's name for
        the model.
        """
        in_any = self.models is None or any(model == allowed for allowed, _ in self.models)
        return in_any and self._may_use_agent(model)

    def _allows(self, model: str, effort: str | None) -> bool:
        allowed = self.models is None or (model, None) in self.models or (model, effort) in self.models
        return allowed and self._may_use_agent(model)

    def _may_use_agent(self, model: str) -> bool:
        """Whether the client may use the agent that serves this model, whose name is the part of the model's name
        before the `/`. True for every model if the key is not limited to some of the agents.
        """
        return self.catalog.only is None or model.partition(MODEL_SEPARATOR)[0] in self.catalog.members


def mcp_not_allowed(param: str) -> Fault:
    message = "This API key may not use MCP servers. Remove them from 'tools', or use another key."
    return Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message, param=param))


def model_not_allowed(asked: str) -> Fault:
    message = (
        f"This API key may not use the model '{excerpt(asked)}'. GET /v1/models lists the "
        "models that it may use."
    )
    return Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message, param="model"))


class Clients:
    """All clients of the server, each found by its key or its name. `everybody` is the client of requests without a
    key; it has the rights of a key without limits.
    """

    def __init__(self, keys: KeySource, everybody: Client) -> None:
        self._source = keys
        self.everybody = everybody
        self._made_of: tuple[KeySet, object] | None = None
        """The keys and the list of models from which `_clients` was made."""
        self._clients: dict[str, Client] = {}

    @property
    def keys_required(self) -> bool:
        """Whether requests need a key."""
        return self._source.current().required

    @property
    def count(self) -> int:
        """The number of clients: one for each key, or 1 if there are no keys."""
        return max(1, len(self._source.current().keys))

    @property
    def trouble(self) -> str | None:
        """Why the newest version of the keys file could not be read; None if it could. As long as it cannot be
        read, the keys of the version before it are valid.
        """
        return self._source.trouble

    def knows(self, digest: str) -> bool:
        """Whether the key with this digest is valid."""
        return self._source.current().by_digest(digest) is not None

    def by_digest(self, digest: str | None) -> Client:
        """Returns the client whose key has this digest; None stands for a request without a key. If no keys are
        required, returns `everybody`, whatever the digest is. Raises `Fault` INVALID_API_KEY if no key has the
        digest, or if a key is required and the request has none.
        """
        keys = self._source.current()
        if not keys.required:
            return self.everybody
        if digest is None:
            raise _refused(
                "This server requires an API key. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        key = keys.by_digest(digest)
        if key is None:
            raise _refused("Incorrect API key provided. Ask the operator of this server for a valid key.")
        return self._of(keys, key)

    def by_name(self, name: str) -> Client:
        """Returns the client with this name. Raises `Fault` INVALID_API_KEY if there is none, for example because
        its key has been removed.
        """
        keys = self._source.current()
        if not keys.required and name == NO_KEY_OWNER:
            return self.everybody
        key = keys.by_name(name)
        if key is None:
            raise _refused("The API key of this request is no longer valid on this server.")
        return self._of(keys, key)

    def _of(self, keys: KeySet, key: Key) -> Client:
        models = self.everybody.catalog.models  # what a key's names of models mean changes with them
        if self._made_of is None or self._made_of[0] is not keys or self._made_of[1] is not models:
            self._made_of, self._clients = (keys, models), {}
        client = self._clients.get(key.name)
        if client is None:
            client = self._clients[key.name] = narrowed(self.everybody, key)
        return client


def narrowed(everybody: Client, key: Key) -> Client:
    """Returns the client of a key: the rights of `everybody`, reduced by the limits of the key."""
    catalog = everybody.catalog.limited_to(key.agents) if key.agents else everybody.catalog
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
        catalog=catalog,
        mcp=key.mcp,
    )


def _allowed(names: tuple[str, ...], catalog: ModelCatalog) -> frozenset[tuple[str, str | None]]:
    """Returns the models that the names in a key's limits stand for: pairs of the agent's name for the model and
    the only reasoning effort that is allowed (None: any effort). Names of unknown models are left out.
    """
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


# --- the folder of a turn ----------------------------------------------------------------------


def workspace_of(folder: str, roots: Sequence[str], protected: tuple[Protected, ...] = ()) -> Workspace:
    """Returns the workspace with this default folder, in which requests may choose any folder in `roots` or in the
    default folder. `protected`: see `Workspace`.
    """
    return Workspace(folder, tuple(dict.fromkeys(map(os.path.realpath, (folder, *roots)))), protected)


def narrowed_to(workspace: Workspace, roots: Sequence[str]) -> Workspace:
    """Returns the workspace for a key that has its own `roots`, which replace those of `workspace`. The default
    folder stays the same if it lies in one of the key's roots; else it is the first of them.
    """
    resolved = tuple(dict.fromkeys(map(os.path.realpath, roots)))
    inside = _is_inside(os.path.realpath(workspace.folder), resolved)
    folder = workspace.folder if inside else resolved[0]
    return msgspec.structs.replace(workspace, folder=folder, roots=resolved)


def in_workspace(turn: Turn, field: str | None, workspace: Workspace) -> Turn:
    """Returns the turn with the absolute path of its working folder: the folder that the request names, or the
    default one. `field` is the request's field that names it; None if the request names none.

    Raises `Fault` INVALID_REQUEST if the folder is not in the workspace or does not exist. Also raises the `Fault`
    of `_confined` if the turn's commands could change a protected path in the folder.
    """
    if field is None:
        return _confined(msgspec.structs.replace(turn, workdir=workspace.folder), None, workspace)
    try:
        folder = os.path.realpath(os.path.join(workspace.folder, os.path.expanduser(turn.workdir)))
    except ValueError:  # a NUL, or half of a surrogate pair
        raise _no_folder(field) from None
    if not _is_inside(folder, workspace.roots):
        raise bad_request(
            f"{field} names a folder outside of this server's workspaces. The operator can "
            "allow it in PROXY_WORKDIR_ROOTS.",
            field,
        )
    if not os.path.isdir(folder):
        raise _no_folder(field)
    return _confined(msgspec.structs.replace(turn, workdir=folder), field, workspace)


def _confined(turn: Turn, field: str | None, workspace: Workspace) -> Turn:
    """Returns the turn with the workspace's `confine_reads`. If the turn's commands could change a protected path,
    raises `Fault`: INVALID_REQUEST with `field` as its `param`, or NOT_ALLOWED if `field` is None.
    """
    turn = msgspec.structs.replace(turn, confine_reads=workspace.confine_reads)
    if turn.mode != "agent" or turn.sandbox != "workspace-write":
        return turn
    found = endangered(os.path.realpath(turn.workdir), workspace.protected)
    if found is None:
        return turn
    message = (
        f"An agent turn that may write cannot work in {turn.workdir}, where {found.what} is "
        f"({found.path}): its commands could change this server. Use another folder, or request "
        "a read-only turn (`X-Codex-Sandbox: read-only`)."
    )
    if field is not None:
        raise bad_request(message, field)
    raise Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))


def _is_inside(folder: str, roots: Sequence[str]) -> bool:
    return any(is_inside(folder, root) for root in roots)


def _no_folder(field: str) -> Fault:
    return bad_request(f"{field} does not name an existing folder.", field)
