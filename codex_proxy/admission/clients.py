"""The clients, and what each may do: the operator's settings, reduced by the limits of its key. A turn that may write
is refused in a folder where it could change the server.

What a key has permitted (long answers, turns in the background) ends once that key is no longer valid. A new key of
the same name is another key.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.keys import NO_KEY_OWNER, Key, KeySet
from codex_proxy.core.own_errors import release_all
from codex_proxy.core.safety import ProtectedPath, find_endangered, is_inside
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import MODEL_SEPARATOR, SANDBOXES, Approvals, Turn
from codex_proxy.files.foreign import why_protected
from codex_proxy.surfaces.models import ModelCatalog, Names, resolve
from codex_proxy.surfaces.requests.fields import Place
from codex_proxy.surfaces.requests.options import RequestSettings


class Workspace(msgspec.Struct, frozen=True):
    """Where turns may work: in `folder` by default, and in the `roots`, whose paths have no links."""

    folder: str
    roots: tuple[str, ...]
    protected: tuple[ProtectedPath, ...] = ()
    """Paths that commands must not be able to change."""
    confine_reads: bool = False
    """Whether commands must be kept from reading what the server stores."""
    own: str = ""
    """The folder, without links, below which turns may work, too: the server makes folders there for this client
    alone. Empty: there is none.
    """
    own_folders: str = ""
    """Where such folders of all clients are, also a path without links: no turn works in that of another client."""


class KeySource(Protocol):
    """The source of the valid keys, such as the keys file."""

    trouble: str | None
    """Why the newest keys could not be read, if so; older ones then stay valid."""

    def current(self) -> KeySet:
        """Returns the same object until the keys change."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The owner of what the client stores: its key's name, or `local`."""
    digest: str = ""
    """The SHA-256 digest of its key; empty without one."""
    settings: RequestSettings
    workspace: Workspace
    rpm: int
    """Maximum requests per minute. 0: no limit."""
    concurrency: int
    """Maximum requests at once; 0: no limit."""
    models: frozenset[tuple[str, str | None]] | None = None
    """The agent's names of the models that the client may use, each with the only allowed effort (None: any). None: all
    models.
    """
    catalog: ModelCatalog
    """The models of those agents that the client may use."""
    mcp: bool = True
    """Whether the client's turns get the tools of MCP servers."""
    approvals: Approvals = "decline"
    """Whether questions of the agent for permission are declined in the client's sessions, or the client is asked."""
    may_approve: bool = False
    """Whether the client may answer them. Nobody may without a key, which a command of the agent does not have."""
    has_approver: bool = False
    """Whether somebody may answer them: this client, or without keys who has the key of this start."""

    def allows(self, model: str, effort: str | None) -> bool:
        """Whether the client may use the agent's model with this effort."""
        allowed = self.models is None or (model, None) in self.models or (model, effort) in self.models
        return allowed and self._may_use_agent(model)

    def may_use(self, name: str) -> bool:
        """Whether the client may use the model that a request calls `name`. Raises `Fault` as `resolve`."""
        resolved = resolve(name, self.catalog)
        return self.allows(resolved.agent_model, resolved.effort)

    def listed_model(self, name: str, names: Names | None = None) -> str | None:
        """Returns the agent's name of a listed model; None if the client may not use it, or it is an alias of no
        model.
        """
        try:
            resolved = resolve(name, self.catalog, names)
        except Fault:
            return None
        return resolved.agent_model if self.allows(resolved.agent_model, resolved.effort) else None

    def allows_some_effort(self, model: str) -> bool:
        in_any = self.models is None or any(model == allowed for allowed, _ in self.models)
        return in_any and self._may_use_agent(model)

    def check_models(self, agent: str, named: Iterable[tuple[Place | str, str]]) -> None:
        """Raises `Fault` NOT_ALLOWED for a field whose name of a model, in the words of the agent's server, is not that
        of a model that the client may use.
        """
        if self.models is None:
            return
        prefix = f"{agent}{MODEL_SEPARATOR}" if self.catalog.members else ""
        for field, name in named:
            if not self.allows_some_effort(name if name.startswith(prefix) else prefix + name):
                raise model_not_allowed(name, str(field))

    def _may_use_agent(self, model: str) -> bool:
        return self.catalog.only is None or model.partition(MODEL_SEPARATOR)[0] in self.catalog.members


NO_LONGER_VALID: Final = "The API key of this request is no longer valid on this server."


def model_not_allowed(model: str, field: str = "model") -> Fault:
    message = (
        f"This API key may not use the model '{excerpt(model)}'. GET /v1/models lists the "
        "models that it may use."
    )
    return Fault.of(FaultKind.NOT_ALLOWED, message, param=excerpt(field))


class Clients:
    """The clients by their keys. `everybody` is the client of requests without a key, or with a key without limits."""

    def __init__(self, keys: KeySource, everybody: Client) -> None:
        self._source = keys
        self.everybody = replace(everybody, has_approver=bool(keys.current().start_digest))
        self._of_start = replace(self.everybody, may_approve=True)
        """The client of the key of this start."""
        self._made_of: tuple[KeySet, object] | None = None
        self._clients: dict[str, Client] = {}
        self._own_root = ""

    def add_own_folders(self, root: str) -> None:
        """Gives every client a folder of its own in `root` (`Workspace.own`), a path without links."""
        self._own_root, self._clients = root, {}
        self.everybody, self._of_start = map(self._with_own_folder, (self.everybody, self._of_start))

    def _with_own_folder(self, client: Client) -> Client:
        if not self._own_root:
            return client
        own = os.path.join(self._own_root, hashlib.sha256(client.name.encode()).hexdigest()[:16])
        # Commands of a turn above could change them all.
        above = ProtectedPath("the folder of all worktrees (PROXY_WORKTREES)", self._own_root, whole=False)
        protected = tuple(dict.fromkeys((*client.workspace.protected, above)))
        workspace = replace(client.workspace, own=own, own_folders=self._own_root, protected=protected)
        return replace(client, workspace=workspace)

    @property
    def keys_required(self) -> bool:
        return self._source.current().required

    @property
    def trouble(self) -> str | None:
        """Why the newest keys could not be read, if so."""
        return self._source.trouble

    @property
    def keys(self) -> KeySet:
        """The valid keys, the same object until they change."""
        return self._source.current()

    def is_valid(self, digest: str) -> bool:
        """Whether a key with this SHA-256 `digest` is valid now."""
        return self._source.current().by_digest(digest) is not None or self.is_of_start(digest)

    def is_of_start(self, digest: str) -> bool:
        """Whether this is the digest of the key of this start."""
        return self._source.current().is_of_start(digest)

    def by_digest(self, digest: str | None) -> Client:
        """Returns the client of a key. If no keys are required, that is `everybody`, which may approve with the key of
        this start. Raises `Fault` INVALID_API_KEY.
        """
        keys = self._source.current()
        if not keys.required:
            return self._of_start if digest is not None and keys.is_of_start(digest) else self.everybody
        if digest is None:
            raise _invalid_key(
                "This server requires an API key. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        key = keys.by_digest(digest)
        if key is None:
            raise _invalid_key("Incorrect API key provided. Ask the operator of this server for a valid key.")
        return self._client_of(keys, key)

    def by_name(self, name: str, digest: str = "") -> Client:
        """Returns the client of a key's name. Raises `Fault` INVALID_API_KEY if the key was removed, or is not the one
        with this `digest`, if it is known.
        """
        keys = self._source.current()
        if not keys.required and name == NO_KEY_OWNER:
            return self.everybody
        key = keys.by_name(name)
        if key is None or digest not in ("", key.sha256):
            raise _invalid_key(NO_LONGER_VALID)
        return self._client_of(keys, key)

    def renew(self, client: Client) -> Client:
        """Returns the client with the limits that its key has now. Raises `Fault` INVALID_API_KEY if this key is no
        longer valid under its name, or one is required of a client without a key.
        """
        if not client.digest and client.may_approve and not self.keys_required:
            return self._of_start
        return self.by_name(client.name, client.digest) if client.digest else self.by_digest(None)

    def _client_of(self, keys: KeySet, key: Key) -> Client:
        models = self.everybody.catalog.models  # what a key's names of models mean changes with them
        if self._made_of is None or self._made_of[0] is not keys or self._made_of[1] is not models:
            self._made_of, self._clients = (keys, models), {}
        client = self._clients.get(key.name)
        if client is None:
            client = self._with_own_folder(limit_to_key(self.everybody, key))
            self._clients[key.name] = client
        return client


def limit_to_key(everybody: Client, key: Key) -> Client:
    catalog = everybody.catalog.for_agents(key.agents) if key.agents else everybody.catalog
    sandbox = everybody.settings.sandbox
    if key.sandbox is not None:
        sandbox = min(sandbox, key.sandbox, key=SANDBOXES.index)
    models = _allowed_models(key.models, catalog) if key.models else None
    if models is not None:
        catalog = catalog.for_models(frozenset(model for model, _ in models))
    workspace = limit_roots(everybody.workspace, key.roots) if key.roots else everybody.workspace
    # Several may have keys, and what is stored is not everybody's.
    workspace = replace(workspace, confine_reads=True)
    tools = "never" if key.plain_model else everybody.settings.builtin_tools
    return Client(
        name=key.name,
        digest=key.sha256,
        settings=replace(everybody.settings, sandbox=sandbox, builtin_tools=tools, workdir=workspace.folder),
        workspace=workspace,
        rpm=key.rpm or everybody.rpm,
        concurrency=key.concurrency or everybody.concurrency,
        models=models,
        catalog=catalog,
        mcp=key.mcp,
        approvals=key.approvals or everybody.approvals,
        may_approve=key.may_approve,
        has_approver=key.may_approve,
    )


def _allowed_models(names: tuple[str, ...], catalog: ModelCatalog) -> frozenset[tuple[str, str | None]]:
    allowed = set()
    for name in names:
        try:
            resolved = resolve(name, catalog)
        except Fault:
            continue
        allowed.add((resolved.agent_model, resolved.effort))
    return frozenset(allowed)


def _invalid_key(message: str) -> Fault:
    return Fault.of(FaultKind.INVALID_API_KEY, message)


# --- the folder of a turn ----------------------------------------------------------------------


def workspace_of(folder: str, roots: Sequence[str], protected: tuple[ProtectedPath, ...] = ()) -> Workspace:
    return Workspace(folder, tuple(dict.fromkeys(map(os.path.realpath, (folder, *roots)))), protected)


def limit_roots(workspace: Workspace, roots: Sequence[str]) -> Workspace:
    """Returns the workspace of a key that has its own `roots`. Its folder is the first of them, unless the folder
    of `workspace` lies in one.
    """
    resolved = tuple(dict.fromkeys(map(os.path.realpath, roots)))
    inside = _is_inside(os.path.realpath(workspace.folder), resolved)
    folder = workspace.folder if inside else resolved[0]
    return replace(workspace, folder=folder, roots=resolved)


def resolve_workdir(turn: Turn, field: str | None, workspace: Workspace) -> Turn:
    """Returns the turn with the absolute path, links resolved, of the folder that it asks for (in `field`), or of the
    default. Raises `Fault` for a folder that is outside or missing, and as `_confine`.
    """
    if field is None:
        return _confine(replace(turn, workdir=workspace.folder), None, workspace)
    try:
        folder = os.path.realpath(os.path.join(workspace.folder, os.path.expanduser(turn.workdir)))
        folder.encode()
    except ValueError:  # a NUL, half of a surrogate pair, or a name that is not UTF-8
        raise _no_folder(field) from None
    is_of_a_client = workspace.own != "" and is_inside(folder, workspace.own_folders)
    if not _is_inside(folder, (workspace.own,) if is_of_a_client else workspace.roots):
        raise bad_request(
            f"{field} names a folder outside of this server's workspaces. The operator can "
            "allow it in PROXY_WORKDIR_ROOTS.",
            field,
        )
    if not os.path.isdir(folder):
        raise _no_folder(field)
    return _confine(replace(turn, workdir=folder), field, workspace)


OTHER_FOLDER: Final = "Use another folder."
READ_ONLY_ADVICE: Final = "Use another folder, or a read-only turn (`X-Codex-Sandbox: read-only`)."
_PARTS_OF_GIT: Final = ("HEAD", "objects", "refs")
"""What git looks for to tell its own folder from others."""


def refuse_protected(
    folder: str, field: str | None, workspace: Workspace, advice: str = OTHER_FOLDER
) -> None:
    """Raises `Fault` if what is written in a folder, given without links, is run or obeyed by programs outside of the
    sandbox, such as git's hooks, also those of a bare repository: unless the operator has named it, or one in it.
    Meant for turns in the sandbox; those without one can write everywhere.
    """
    named = [
        *workspace.roots,
        os.path.realpath(workspace.folder),
        *([workspace.own] if workspace.own else []),
    ]
    refused = [_why_refused_below(root, folder) for root in named if is_inside(folder, root)]
    if refused and all(refused):
        message = (
            f"Nothing may be written in {folder}: {refused[0]}. {advice} "
            "The operator can allow this one in PROXY_WORKDIR_ROOTS."
        )
        raise bad_request(message, field)


def _why_refused_below(root: str, folder: str) -> str:
    """Returns why nothing may be written in a folder in the folder `root`; empty if it may."""
    path = folder[len(root) :].strip(os.sep)
    if not path or (why := why_protected(path)):
        return why if path else ""
    place = root
    for name in path.split(os.sep):
        place = os.path.join(place, name)
        if all(os.path.lexists(os.path.join(place, part)) for part in _PARTS_OF_GIT):
            return f"{place} is git's own folder, whose hooks and settings git obeys"
    return ""


def _confine(turn: Turn, field: str | None, workspace: Workspace) -> Turn:
    """Sets whether reads are confined: also where commands are asked about, since what is permitted must stay in the
    sandbox. Raises `Fault` if commands could change a protected path: INVALID_REQUEST for
    `field`, NOT_ALLOWED without one.
    """
    turn = replace(turn, confine_reads=workspace.confine_reads or turn.approvals == "ask")
    if turn.mode != "agent" or turn.sandbox != "workspace-write":
        return turn
    folder = os.path.realpath(turn.workdir)  # that of the settings may have links
    refuse_protected(folder, field, workspace, READ_ONLY_ADVICE)
    found = find_endangered(folder, workspace.protected)
    if found is None:
        return turn
    message = (
        f"An agent turn that may write cannot work in {turn.workdir}, where {found.what} is "
        f"({found.path}), which its commands could change. Use another folder, or request "
        "a read-only turn (`X-Codex-Sandbox: read-only`)."
    )
    if field is not None:
        raise bad_request(message, field)
    raise Fault.of(FaultKind.NOT_ALLOWED, message)


def _is_inside(folder: str, roots: Sequence[str]) -> bool:
    return any(is_inside(folder, root) for root in roots)


def _no_folder(field: str) -> Fault:
    return bad_request(f"{field} does not name an existing folder.", field)


LOOK_SECONDS: Final = 0.2
"""Seconds between two looks for changed keys, while a right is held."""

OnLost: TypeAlias = Callable[[Failure], None]


class HeldRights:
    """The rights of keys on which something that goes on depends, such as a long answer or a turn in the background:
    who holds one learns that it is lost.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._held: dict[object, tuple[Client, OnLost]] = {}
        self._checked: KeySet | None = None
        """The keys by which all rights were checked last."""
        self._looking = False

    def hold(self, client: Client, on_lost: OnLost) -> Callable[[], object]:
        """Calls `on_lost`, once, if requests of the client's key would be refused from now on; until the returned
        function is called.
        """
        mark = object()
        self._held[mark] = (client, on_lost)
        if not self._looking:
            self._look_later()
        return partial(self._held.pop, mark, None)

    def _look_later(self) -> None:
        self._looking = True
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = False
        if not self._held:
            return
        self._look_later()
        keys = self._clients.keys
        if keys is not self._checked:
            self._checked = keys
            release_all(*self._lost())

    def _lost(self) -> Sequence[Callable[[], None]]:
        found: dict[str, Failure | None] = {}
        lost = []
        for mark, (client, on_lost) in list(self._held.items()):
            if client.digest not in found:
                found[client.digest] = self._failure_of(client)
            failure = found[client.digest]
            if failure is not None:
                del self._held[mark]
                lost.append(partial(on_lost, failure))
        return lost

    def _failure_of(self, client: Client) -> Failure | None:
        try:
            self._clients.renew(client)
        except Fault as fault:
            return fault.failure
        return None
