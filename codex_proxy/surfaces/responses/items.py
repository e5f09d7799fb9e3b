"""Converts clients' items to the stored form: with a status, a list as content, and no unknown fields. Raises `Fault`
INVALID_REQUEST. Source: docs/wire-rules.md#lists-and-stored-objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from codex_proxy.core.faults import bad_request
from codex_proxy.core.interfaces import IdSource
from codex_proxy.core.media import PdfTexts
from codex_proxy.surfaces.requests.body import missing_parameter
from codex_proxy.surfaces.requests.files import file_text, image_url, no_file
from codex_proxy.surfaces.responses import item_wire as wire

ItemDict: TypeAlias = dict[str, Any]

PREFIXES: Final = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "tool_search_call": "tsc_",
    "tool_search_output": "tso_",
    "additional_tools": "at_",
    "agent_message": "amsg_",
    "mcp_call": "mcp_",
    "mcp_list_tools": "mcpl_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpa_",
    "compaction": "cmp_",
    "compaction_trigger": "cmpt_",
    "configuration_update": "cu_",
    "web_search_call": "ws_",
    "code_interpreter_call": "ci_",
    "file_search_call": "fs_",
    "image_generation_call": "ig_",
    "local_shell_call": "lsh_",
    "local_shell_call_output": "lsho_",
    "shell_call": "sh_",
    "shell_call_output": "sho_",
    "apply_patch_call": "apc_",
    "apply_patch_call_output": "apco_",
    "codex:activity": "act_",
}
"""The prefix of an id by its item's type; `item_` for other types."""

CLIENT_CALLS: Final = frozenset(
    {
        *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *("tool_search_call", "tool_search_output", "local_shell_call", "local_shell_call_output"),
        *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
    }
)
"""Types of calls and outputs of the client's own tools."""

_STATUSES: Final = frozenset({"in_progress", "completed", "incomplete"})


def normalise_items(
    given: str | Sequence[wire.AnyItem], field: str = "input", pdfs: PdfTexts | None = None
) -> tuple[ItemDict, ...]:
    """Returns the items in stored form; a string is a user message."""
    if isinstance(given, str):
        return (_message("user", [{"type": "input_text", "text": given}]),)
    return tuple(_FORMS[type(item)](item, f"{field}[{index}]", pdfs) for index, item in enumerate(given))


def asks_for_compaction(items: Sequence[ItemDict], field: str = "input") -> bool:
    """Returns whether the last item asks for a compaction. Raises `Fault` for another one without its `compaction`."""
    for index, item in enumerate(items[:-1]):
        if item["type"] == "compaction_trigger" and items[index + 1]["type"] != "compaction":
            raise bad_request(
                "A 'compaction_trigger' must be the last item, or be followed by its 'compaction'.",
                f"{field}[{index}]",
            )
    return bool(items) and items[-1]["type"] == "compaction_trigger"


def with_ids(items: Iterable[ItemDict], ids: IdSource) -> list[ItemDict]:
    """Returns the items, with new ids where they are missing."""
    return [
        item if item.get("id") else {"id": ids.new(PREFIXES.get(item["type"], "item_")), **item}
        for item in items
    ]


def web_images(items: Iterable[ItemDict]) -> dict[str, str]:
    """Returns the web addresses of images, each with the first field that has it."""
    found: dict[str, str] = {}
    for index, item in enumerate(items):
        for key in ("content", "output"):
            parts = item.get(key)
            for number, part in enumerate(parts if isinstance(parts, list) else ()):
                if part.get("type") == "input_image" and not part["image_url"].startswith("data:"):
                    found.setdefault(part["image_url"], f"input[{index}].{key}[{number}].image_url")
    return found


def references_of(items: Iterable[ItemDict]) -> tuple[str, ...]:
    return tuple(item["id"] for item in items if item["type"] == "item_reference")


def resolve_references(items: Iterable[ItemDict], found: Mapping[str, ItemDict]) -> tuple[ItemDict, ...]:
    whole = []
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            if item["id"] not in found:
                raise bad_request(
                    f"Item with id '{item['id']}' not found. Items are not kept when 'store' is false.",
                    f"input[{index}].id",
                    "item_not_found",
                )
            item = found[item["id"]]
        whole.append(item)
    return tuple(whole)


# --- one form per kind of item ------------------------------------------------------------------


def _message(role: str, content: list[ItemDict], status: str = "completed") -> ItemDict:
    return {"type": "message", "role": role, "content": content, "status": status}


def _status(item: wire.Item) -> str:
    return item.status if item.status in _STATUSES else "completed"


def _with_optional(item: ItemDict, **optional: Any) -> ItemDict:
    return item | {key: value for key, value in optional.items() if value is not None}


def _message_form(item: wire.MessageItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    by_assistant = item.role == "assistant"
    content = _parts(item.content, f"{param}.content", pdfs, by_assistant=by_assistant)
    return _with_optional(_message(item.role, content, _status(item)), id=item.id, phase=item.phase)


def _parts(content: wire.Content, param: str, pdfs: PdfTexts | None, *, by_assistant: bool) -> list[ItemDict]:
    """Converts an item's content to stored parts. `param`: the content's field."""
    if isinstance(content, str):
        return [_text(content, by_assistant=by_assistant)]
    return [
        _part(part, f"{param}[{index}]", pdfs, by_assistant=by_assistant)
        for index, part in enumerate(content)
    ]


def _text(text: str, *, by_assistant: bool) -> ItemDict:
    if by_assistant:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _part(part: wire.AnyPart, param: str, pdfs: PdfTexts | None, *, by_assistant: bool) -> ItemDict:
    if isinstance(part, wire.TextPart):
        return _text(part.text, by_assistant=by_assistant)
    if isinstance(part, wire.RefusalPart):
        return (
            {"type": "refusal", "refusal": part.refusal}
            if by_assistant
            else _text(part.refusal, by_assistant=False)
        )
    if isinstance(part, wire.AudioPart) or by_assistant:
        accepted = (
            "'output_text' or 'refusal'" if by_assistant else "'input_text', 'input_image' or 'input_file'"
        )
        raise bad_request(
            f"The agent does not accept parts of type '{part.type}' here. Send {accepted}.", param
        )
    if isinstance(part, wire.FilePart):
        # It is kept as the model gets it: nobody reads the file a second time.
        text = file_text(
            param, name=part.filename, data=part.file_data, id=part.file_id, url=part.file_url, pdfs=pdfs
        )
        return _text(text, by_assistant=False)
    if part.image_url is None:
        if part.file_id is not None:
            raise bad_request(no_file(part.file_id), f"{param}.file_id", "invalid_value")
        raise bad_request("An image must be given in 'image_url' or 'file_id'.", f"{param}.image_url")
    url = image_url(part.image_url, f"{param}.image_url")
    return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}


def _reasoning_form(item: wire.ReasoningItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    summary = [{"type": "summary_text", "text": part.text} for part in item.summary or ()]
    content = [{"type": "reasoning_text", "text": part.text} for part in item.content or ()]
    return _with_optional(
        {"type": "reasoning", "summary": summary, "status": _status(item)},
        id=item.id,
        content=content or None,
        encrypted_content=item.encrypted_content,
    )


def _agent_message_form(item: wire.AgentMessageItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    content = [part.model_dump(exclude_none=True) for part in item.content]
    message = {"type": item.type, "author": item.author, "recipient": item.recipient, "content": content}
    return _with_optional(message, id=item.id)


def _output_form(item: wire.CallOutputItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    output = item.output
    if not isinstance(output, str):
        output = _parts(output, f"{param}.output", pdfs, by_assistant=False)  # type: ignore[assignment]
    return _with_optional(
        {"type": item.type, "call_id": item.call_id, "output": output, "status": _status(item)},
        id=item.id,
        name=item.name,
        arguments=item.arguments,
    )


def _update_form(item: wire.ConfigurationUpdateItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    return item.model_dump(exclude_none=True, by_alias=True, warnings=False)


def _native_form(item: wire.NativeItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    return _with_optional({}, **item.model_dump())


def _hosted_form(item: wire.NativeItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    return item.model_dump(exclude_unset=True)


def _local_shell_output_form(item: wire.LocalShellOutputItem, param: str, pdfs: PdfTexts | None) -> ItemDict:
    call_id = item.call_id or item.id
    if not call_id:
        raise missing_parameter(f"{param}.call_id")
    return {"type": item.type, "call_id": call_id, "output": item.output, "status": _status(item)}


def _machine_form(item: Any, param: str, pdfs: PdfTexts | None) -> ItemDict:
    given: ItemDict = item.model_dump(exclude={"caller"}, exclude_none=True, by_alias=True, warnings=False)
    return given if isinstance(item, wire.PatchOutputItem) else given | {"status": _status(item)}


_PLAIN: Final[dict[type, tuple[str, str]]] = {
    wire.ItemReference: ("type id", ""),
    wire.FunctionCallItem: ("type call_id name arguments status", "id namespace"),
    wire.CustomCallItem: ("type call_id name input status", "id namespace"),
    wire.ToolSearchCallItem: ("type execution arguments status", "id call_id"),
    wire.ToolSearchOutputItem: ("type execution tools status", "id call_id"),
    wire.AdditionalToolsItem: ("type role tools", "id"),
    wire.McpListToolsItem: ("type server_label tools status", "id error"),
    wire.McpCallItem: ("type server_label name arguments output error status approval_request_id", "id"),
    wire.McpApprovalRequestItem: ("type server_label name arguments status", "id"),
    wire.McpApprovalResponseItem: ("type approval_request_id approve", "id reason"),
    wire.CompactionItem: ("type encrypted_content", "id"),
    wire.CompactionTriggerItem: ("type", "id"),
    wire.ActivityItem: ("type kind text output", "id status"),
}
"""The fields that are always there, and those only if given, by type of item."""
_DEFAULTS: Final[dict[type, ItemDict]] = {
    wire.ItemReference: {"type": "item_reference"},
    wire.ToolSearchCallItem: {"execution": "client", "arguments": {}},
    wire.ToolSearchOutputItem: {"execution": "client"},
    wire.AdditionalToolsItem: {"role": "developer"},
    wire.ActivityItem: {"output": ""},
}
"""The values of missing fields by type of item; others are null."""


def _plain_form(item: Any, param: str, pdfs: PdfTexts | None) -> ItemDict:
    always, if_given = _PLAIN[type(item)]
    form = {name: getattr(item, name) for name in always.split()}
    form |= {name: form[name] or default for name, default in _DEFAULTS.get(type(item), {}).items()}
    if "status" in form:
        # Lists and calls of MCP tools have further statuses, such as `failed`.
        of_mcp = isinstance(item, wire.McpListToolsItem | wire.McpCallItem)
        form["status"] = (item.status or "completed") if of_mcp else _status(item)
    return _with_optional(form, **{name: getattr(item, name) for name in if_given.split()})


_FORMS: Final[dict[type, Callable[[Any, str, PdfTexts | None], ItemDict]]] = {
    wire.MessageItem: _message_form,
    wire.CallOutputItem: _output_form,
    **dict.fromkeys(_PLAIN, _plain_form),
    wire.ReasoningItem: _reasoning_form,
    wire.AgentMessageItem: _agent_message_form,
    wire.ConfigurationUpdateItem: _update_form,
    wire.WebSearchCallItem: _native_form,
    **dict.fromkeys((wire.CodeCallItem, wire.FileSearchCallItem, wire.ImageCallItem), _hosted_form),
    wire.LocalShellCallItem: _native_form,
    wire.LocalShellOutputItem: _local_shell_output_form,
    **dict.fromkeys(
        (wire.ShellCallItem, wire.ShellOutputItem, wire.PatchCallItem, wire.PatchOutputItem), _machine_form
    ),
}
