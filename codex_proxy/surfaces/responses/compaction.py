"""A compaction item of ours: a summary that stands for what was said before, opaque to the client.

In: the summary's text. Out: the text of `encrypted_content`, and back. It is not secret, only sealed against being
taken for something else: what does not begin as ours came from a provider and goes back to it as it is.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

_MARK: Final = "codex-proxy-summary-1."


def sealed(summary: str) -> str:
    """The summary as `encrypted_content`."""
    return _MARK + base64.urlsafe_b64encode(summary.encode("utf-8", "replace")).decode()


def unsealed(content: str) -> str | None:
    """The summary in an `encrypted_content` of ours; None for anybody else's."""
    if not content.startswith(_MARK):
        return None
    try:
        return base64.b64decode(content[len(_MARK) :], b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
