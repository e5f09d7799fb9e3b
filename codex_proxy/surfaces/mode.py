"""Plain model or agent: who works with the client's request, and in which sandbox.

In: what the operator set, what the name and the header ask for, and whether the request looks like that of a
client which is an agent itself (it brings tools, a response format, or instructions). Out: a `Mode`. A
request can narrow what the server allows and never widen it: asking for the agent where the operator said
`never` raises `Fault` NOT_ALLOWED.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.turn import SANDBOXES, Mode, Sandbox

BuiltinTools: TypeAlias = Literal["auto", "always", "never"]

MODE_HEADER: Final = "X-Codex-Mode"
SANDBOX_HEADER: Final = "X-Codex-Sandbox"


def mode_of(*, by_name: Mode | None, by_header: str | None, server: BuiltinTools, client_acts: bool) -> Mode:
    """The mode of one turn. Of two wishes in one request the narrower wins."""
    wishes = {by_name, _header_mode(by_header)}
    if "model" in wishes:
        return "model"
    if "agent" in wishes:
        if server == "never":
            raise Fault(
                Failure(
                    kind=FaultKind.NOT_ALLOWED,
                    message="You get the plain model only: agent turns are switched off, on this server or for your "
                    "key.",
                    param="model" if by_name == "agent" else MODE_HEADER,
                )
            )
        return "agent"
    if server == "auto":
        return "model" if client_acts else "agent"
    return "agent" if server == "always" else "model"


def sandbox_of(by_header: str | None, server: Sandbox) -> Sandbox:
    """The sandbox of one turn: the server's, or the narrower one that is asked for. Raises `Fault`."""
    asked = (by_header or "").strip().lower()
    if not asked:
        return server
    if asked not in SANDBOXES:
        known = ", ".join(f"'{each}'" for each in SANDBOXES)
        raise bad_request(
            f"Invalid value for '{SANDBOX_HEADER}': supported values are: {known}.", SANDBOX_HEADER
        )
    if SANDBOXES.index(asked) > SANDBOXES.index(server):
        raise Fault(
            Failure(
                kind=FaultKind.NOT_ALLOWED,
                message=f"The most that this server allows you is the sandbox '{server}'.",
                param=SANDBOX_HEADER,
            )
        )
    return asked


def _header_mode(value: str | None) -> Mode | None:
    match (value or "").strip().lower():
        case "":
            return None
        case "model":
            return "model"
        case "agent":
            return "agent"
    raise bad_request(
        f"Invalid value for '{MODE_HEADER}': supported values are: 'model', 'agent'.", MODE_HEADER
    )
