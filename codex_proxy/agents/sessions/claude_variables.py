"""The environment variables of a Claude Code process, whether this server drives it or an adapter does. Found by
experiments with releases 2.1.316 and 2.1.330.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CLAUDE_VARIABLES: Final[Mapping[str, str]] = {
    # An error is told at once: a retry takes up to minutes, and clients try again by themselves.
    "CLAUDE_CODE_MAX_RETRIES": "0",
    # An answer that broke off would come again as a whole, as another text.
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    # The client's tools stand in the request, not behind a search.
    "ENABLE_TOOL_SEARCH": "false",
    # No telemetry, no updates.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    # What a client writes was not typed at a terminal. These hold for releases, too, that know no mark for that.
    "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
    "CLAUDE_CODE_DISABLE_ULTRATHINK": "1",
    "CLAUDE_CODE_DISABLE_WORKFLOWS": "1",
    # Nothing that one client says is kept for another, and no model call beside the turn's: no memory, no suggestions,
    # no titles.
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
}
