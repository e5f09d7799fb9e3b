"""What is known of an agent on this machine without a start of it; agents' specs return it for `codex-proxy agents`."""

from __future__ import annotations

import msgspec

from codex_proxy.core.options import Capability


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's program, and the traces of a sign-in."""

    installed: bool
    """Whether the agent can be started, as far as that is known without a start: its program is there, or it needs
    none.
    """
    program: str = ""
    """The program's path; for a model server its address; empty if there is none."""
    version: str = ""
    """The program's release; empty if it is not known."""
    signed_in: bool | None = None
    """None: not known, or there is nothing to sign in to."""
    install: str = ""
    """The command that installs the program, or sets what the agent needs; empty if nothing is missing."""
    sign_in: str = ""
    """What to do to sign in, in a sentence."""
    trouble: str = ""
    """What went wrong when the program was asked for its release."""
    capabilities: frozenset[Capability] | None = None
    """What this program can do, if its spec does not say that."""
