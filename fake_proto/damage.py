"""Changes lines of JSON, for the faults `wrong_types`, `unended` and `same_ids`. Fields that assign a line to a turn
stay.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ITEM_ENDS = re.compile(
    rb'"(item/completed|content_block_stop|exec_command_end|patch_apply_end|web_search_end|tool_call_update)"'
)
ITEM_ID = re.compile(rb'"((?:fc_)?(?:msg|rs|call|ws|tool|toolu|message|thought))_[0-9]\w*"')
KEPT = frozenset(("id", "method", "type", "threadId", "turnId", "itemId", "callId", "call_id"))


def ends_item(line: bytes) -> bool:
    """Whether a line ends an item, a command or a call, in any dialect."""
    return ITEM_ENDS.search(line) is not None


def with_same_ids(line: bytes) -> bytes:
    """Returns the line with one id for all items of a kind."""
    return ITEM_ID.sub(rb'"\1_1_1"', line)


def with_other_types(line: bytes) -> bytes:
    """Returns the line with every value replaced by one of another type."""
    return json.dumps(_change_types(json.loads(line))).encode() + b"\n"


def _change_types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: each if key in KEPT else _change_types(each) for key, each in value.items()}
    if isinstance(value, list):
        return {str(index): _change_types(each) for index, each in enumerate(value)}
    if isinstance(value, str):
        return len(value)
    return ["nothing" if value is None else str(value)]
