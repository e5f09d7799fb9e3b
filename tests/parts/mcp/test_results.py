"""How a server's answer becomes a result that a model can read."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from mcp_types import CallToolResult

from codex_proxy.core.items import ImagePart
from codex_proxy.parts.mcp.config import redact
from codex_proxy.parts.mcp.values import McpLimits, McpResult, result_of
from tests.parts.mcp.definitions import texts
from tests.pictures import PNG

IMAGE = base64.b64encode(PNG).decode()
TORN = base64.b64encode(PNG[:-1]).decode()
TIFF = base64.b64encode(b"II*\0").decode()


def result(*content: dict[str, Any], limits: McpLimits | None = None, **more: Any) -> McpResult:
    answer = CallToolResult.model_validate({"content": list(content), **more})
    return result_of(answer, limits or McpLimits())


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def image(data: str = IMAGE, type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": type}


def test_several_texts_are_serialised_as_a_json_array_and_images_are_not_in_it() -> None:
    assert result(text("a"), image()).text == "a"
    assert result(text('a "b"\n'), image(), text("ä")).text == '["a \\"b\\"\\n","ä"]'


def test_an_answer_without_content_is_an_empty_array() -> None:
    assert (result().text, result().parts) == ("[]", ())


def test_structured_content_without_a_text_is_given_to_the_model_as_text() -> None:
    assert texts(result(structuredContent={"a": [1, 2]})) == ['{"a":[1,2]}']
    assert texts(result(text("a"), structuredContent={"a": [1, 2]})) == ["a"]


def test_the_text_of_a_resource_is_text_and_its_image_an_image() -> None:
    given = result(
        {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": IMAGE, "mimeType": "image/webp"}},
    )
    assert texts(given) == ["inside"]
    assert given.parts[1] == ImagePart(f"data:image/png;base64,{IMAGE}"), (
        "by its bytes, whatever it is called"
    )


@pytest.mark.parametrize(
    ("block", "line"),
    [
        ({"type": "audio", "data": IMAGE, "mimeType": "audio/wav"}, "[content that cannot be shown: audio]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[a link to a resource: a, file:///a]"),
        (
            {
                "type": "resource",
                "resource": {"uri": "file:///z", "blob": IMAGE, "mimeType": "application/zip"},
            },
            "[a file that cannot be shown: application/zip, file:///z]",
        ),
        (image(TIFF, "image/tiff"), "[an image that is not a PNG, JPEG, WebP or GIF: image/tiff]"),
        (image(data="no base64!"), "[an image that is no valid base64: image/png]"),
        (image(data=TORN), "[an image that is damaged: its end is missing: image/png]"),
    ],
)
def test_content_that_a_model_cannot_take_is_named(block: dict[str, Any], line: str) -> None:
    assert texts(result(block)) == [line]


def test_texts_are_cut_together_and_between_characters() -> None:
    given = result(text("abc"), text("ää"), text("more"), limits=McpLimits(text_bytes=6))
    assert texts(given) == ["abc", "ä", "[This result was too large: its text was cut to 6 bytes.]"]
    assert given.truncated


def test_a_text_of_just_the_limit_is_not_cut() -> None:
    given = result(text("abc"), text("def"), limits=McpLimits(text_bytes=6))
    assert (texts(given), given.truncated) == (["abc", "def"], False)


def test_images_above_the_limit_are_left_out_and_the_rest_kept() -> None:
    given = result(image(), image(), text("a"), limits=McpLimits(image_bytes=len(IMAGE)))
    assert [type(part).__name__ for part in given.parts] == ["ImagePart", "TextPart", "TextPart"]
    assert given.truncated


def test_of_too_many_parts_the_first_are_kept() -> None:
    given = result(*(text(str(n)) for n in range(5)), limits=McpLimits(max_parts=2))
    assert texts(given) == ["0", "1", "[This result was too large: only its first 2 parts were kept.]"]


def test_structured_content_above_the_limit_is_left_out() -> None:
    given = result(structuredContent={"a": "b" * 50}, limits=McpLimits(text_bytes=20))
    assert texts(given) == [
        "[This result was too large: its structured content above 20 bytes was left out.]"
    ]
    assert given.truncated


def test_secrets_are_taken_out_also_behind_their_scheme_and_short_ones_stay() -> None:
    secrets = ("Bearer abcdef", "1", "abcdefgh")
    assert redact("abcdefgh, Bearer abcdef, abcdef, 1", secrets) == "[...], [...], [...], 1"
