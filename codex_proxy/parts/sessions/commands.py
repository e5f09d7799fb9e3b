"""What clients have a session do, as values: the server that holds the session does it, and others send it there. And
how it is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from codex_proxy.agents.shared.forms import check_values
from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.parts.sessions.agents import AgentSettings
from codex_proxy.parts.sessions.approvals import Approval, Ask
from codex_proxy.parts.sessions.placed_files import FileResource
from codex_proxy.parts.sessions.sessions import Call, CallResult, Content, Session
from codex_proxy.store.values import MAX_METADATA_KEYS


def patched(
    metadata: Mapping[str, str], patch: Mapping[str, str | None], *, limited: bool = True
) -> dict[str, str]:
    """Returns metadata with a patch, of which None deletes a key. Raises `Fault` for too many keys, if `limited`,
    unless there were as many before.
    """
    found = {key: value for key, value in {**metadata, **patch}.items() if value is not None}
    if limited and len(found) > max(MAX_METADATA_KEYS, len(metadata)):
        message = f"At most {MAX_METADATA_KEYS} keys are stored. Delete others with null."
        raise bad_request(message, "metadata")
    return found


class Result(msgspec.Struct, frozen=True, tag="result"):
    """A client's result of a call of a turn."""

    turn: str
    result: CallResult
    once: bool = False
    """Whether the same result again is an error."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self.result)).hexdigest()


class HeldMessages(msgspec.Struct, frozen=True, tag="held"):
    """Messages for a turn of their own, which do not steer the one that goes on. `turn`: its id."""

    messages: Sequence[Content]
    turn: str


class Interrupt(msgspec.Struct, frozen=True, tag="interrupt"):
    """The end of the turn. `name`: see `log.Interrupted`."""

    name: str


Submitted: TypeAlias = Literal["cancel"] | Interrupt | Result | Approval | HeldMessages | Sequence[Content]
"""An event of a client: the end of the turn, a call's result, an answer to a question, or messages."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Events, all or none. `key`: an `Idempotency-Key` with the digest of the body; what was accepted under it before
    does nothing.
    """

    changes: Sequence[Submitted]
    key: tuple[str, str] | None = None


class Change(msgspec.Struct, frozen=True, tag="change"):
    """The settings that differ between `before` and `after`, and new metadata unless None; the title, unless it stays;
    the time when the session is archived; and of Anthropic's API a `patch` of metadata, in which None removes a key,
    and the files that were `added` to its folder, or (by their ids) `removed`. `fields`: what the log tells of it.
    """

    before: AgentSettings
    after: AgentSettings
    metadata: dict[str, str] | None = None
    title: str | msgspec.UnsetType | None = msgspec.UNSET
    archived_at: int | None = None
    restored: bool = False
    """Whether the session is no longer archived."""
    is_activity: bool = True
    """Whether the session's time of the last activity is that of the change. What this server notes of itself is none,
    and has room beside as many keys as a client may have.
    """
    added: tuple[FileResource, ...] = ()
    removed: tuple[str, ...] = ()
    fields: dict[str, Any] | None = None
    patch: dict[str, str | None] | None = None

    @classmethod
    def between(cls, before: Session, after: Session) -> Change:
        metadata = None if before.metadata == after.metadata else after.metadata
        title = msgspec.UNSET if before.title == after.title else after.title
        added = tuple(each for each in after.resources if each not in before.resources)
        removed = tuple(each.id for each in before.resources if each not in after.resources)
        restored = before.archived_at is not None and after.archived_at is None
        return cls(
            before.agent,
            after.agent,
            metadata,
            title,
            after.archived_at,
            restored,
            added=added,
            removed=removed,
        )

    @property
    def fits_archived(self) -> bool:
        """Whether an archived session takes the change: it can be restored, and renamed."""
        others = (self.metadata, self.patch, *self.added, *self.removed)
        renamed = self.title is not msgspec.UNSET and self.before == self.after
        return self.restored or (renamed and all(each is None for each in others))

    def applied_to(self, session: Session) -> Session:
        """Returns the session with the change. Raises `Fault` if a patch leaves too many keys."""
        before = asdict(self.before)
        changed = {name: value for name, value in asdict(self.after).items() if value != before[name]}
        metadata = session.metadata if self.metadata is None else self.metadata
        if self.patch is not None:  # another server may have sent one since this was read
            metadata = patched(metadata, self.patch, limited=self.is_activity)
        title = session.title if self.title is msgspec.UNSET else self.title
        archived_at = None if self.restored else session.archived_at or self.archived_at
        agent = replace(session.agent, **changed)
        # Another server may have made the change, and been lost before it said so.
        replaced = {*self.removed, *(each.id for each in self.added)}
        resources = tuple(each for each in session.resources if each.id not in replaced) + self.added
        changed = {"agent": agent, "metadata": metadata, "title": title, "archived_at": archived_at}
        return replace(session, resources=resources, **changed)


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """The end of an idle session."""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """That a server follows the session from now on."""


Command: TypeAlias = Submit | Change | Delete | Follow

WAITING: Final = "waiting_for_client"
NOT_OPEN: Final = "not_open"
"""The codes of refusals: a message while calls wait for the client; an answer that no call waits for, whose id is the
`param`.
"""


def conflict(message: str) -> Fault:
    return Fault(Failure(FaultKind.CONFLICT, message))


def require_active(session: Session) -> None:
    """Raises `Fault` CONFLICT for an archived session."""
    if session.archived_at is not None:
        raise conflict("The session is archived: it can only be read, renamed, restored or deleted.")


def is_new_result(given: Result, call: Call | None, session: Session) -> bool:
    """Whether a result is new, and not the one that the call has already. `call`: the call with its id, if the
    session has one, also of an earlier turn. Raises `Fault` for a result that nobody waits for.
    """
    if call is None:
        # The SDKs know this text, and try again.
        raise bad_request(f"Unknown pending tool call: {excerpt(given.result.call_id)}")
    if call.turn != given.turn:
        raise bad_request(f"The call '{excerpt(call.call_id)}' is of another turn.", "events")
    if call.answered:
        if call.answered == given.digest:
            return False
        raise conflict(f"The call '{excerpt(call.call_id)}' has another result already.")
    if session.turn != call.turn:
        raise conflict(f"The turn of the call '{excerpt(call.call_id)}' has ended without its result.")
    return True


def _check_form(given: Approval, ask: Ask) -> None:
    """Raises `Fault` if values do not fit the question: of a form the fields, of any other there are none."""
    if given.choice != "approve" or not ask.is_form:
        if given.content:
            raise bad_request("Only the form of a question takes values: leave 'content' out.", "content")
        return
    check_values(ask.fields, given.content)


def is_new_answer(given: Approval, ask: Ask | None, session: Session) -> bool:
    """Whether an answer is new, and not the one that the question has already. `ask`: the question with its id, if the
    session has one, also of an earlier turn. Raises `Fault` for an answer that nobody waits for, that is to another
    question than was shown, or that permits what is not offered.
    """
    id = excerpt(given.request_id)
    if given.digest and (ask is None or not ask.asked):
        raise Fault.of(FaultKind.NOT_FOUND, f"Approval request with id '{id}' not found.")
    if ask is None:
        raise bad_request(f"Unknown pending approval request: {id}", "events")
    if given.digest and given.digest != ask.digest:
        raise conflict(
            f"The approval request '{id}' asks for something else: read it again, and answer that."
        )
    before = ask.answered, ask.denial, ask.for_session, ask.content
    if before == (given.choice, given.denial, given.for_session, given.content):
        return False
    if ask.answered:
        raise conflict(f"The approval request '{id}' has another answer already.")
    if session.turn != ask.turn:
        raise conflict(f"The turn of the approval request '{id}' has ended without an answer.")
    if ask.asked and ask not in session.open_asks:
        raise conflict(f"The agent no longer waits for an answer to the approval request '{id}'.")
    _check_form(given, ask)
    if given.for_session and ask.rule is None:
        raise bad_request(
            "This cannot be permitted for the session, only once: leave 'for_session' out.", "for_session"
        )
    return True


@contextlib.contextmanager
def once(only: bool, id: str) -> Iterator[None]:
    """Has a refusal of an answer that is wanted `only` once say whose it is."""
    try:
        yield
    except Fault as fault:
        if not only:
            raise
        failure = Failure(FaultKind.INVALID_REQUEST, fault.failure.message, param=id, code=NOT_OPEN)
        raise Fault(failure) from None
