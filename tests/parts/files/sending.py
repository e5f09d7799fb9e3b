"""What clients of files send: forms as they are on the wire, and the real SDKs."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import anthropic
import openai

from codex_proxy.parts.files.endpoints import FILES
from codex_proxy.parts.files.service import Files
from tests.http.serving import Answer, Proxy

BOUNDARY: Final = "--a-boundary"
FORM: Final = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
OPENAI: Final = {"Authorization": "Bearer none"}
ANTHROPIC: Final = {"x-api-key": "none", "anthropic-version": "2023-06-01"}


def part(name: str, value: bytes, filename: str = "", media_type: str = "") -> bytes:
    """A field of a form."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
    head += f'; filename="{filename}"' if filename else ""
    head += f"\r\nContent-Type: {media_type}" if media_type else ""
    return head.encode() + b"\r\n\r\n" + value + b"\r\n"


END: Final = f"--{BOUNDARY}--\r\n".encode()


def form(
    data: bytes = b"Hello.", filename: str = "a.txt", media_type: str = "text/plain", **fields: str
) -> bytes:
    """A whole form of an upload."""
    others = b"".join(part(name, value.encode()) for name, value in fields.items())
    return others + part("file", data, filename, media_type) + END


async def upload(
    proxy: Proxy,
    body: Any = None,
    headers: Mapping[str, str] = OPENAI,
    purpose: str = "user_data",
    **more: Any,
) -> Answer:
    """POST /v1/files. `body` None: a form of `more`."""
    given = form(purpose=purpose, **more) if body is None else body
    sent = {**FORM, **headers}
    async with proxy.session.post(f"{proxy.url}/v1/files", data=BytesIO(given), headers=sent) as reply:
        return Answer(reply.status, reply.headers, await reply.text())


async def uploaded(proxy: Proxy, headers: Mapping[str, str] = OPENAI, **more: Any) -> str:
    """The id of a file that is uploaded."""
    answer = await upload(proxy, headers=headers, **more)
    assert answer.status == 200, answer.text
    return str(answer.body["id"])


def files_of(proxy: Proxy) -> Files:
    return proxy.app[FILES]


def openai_client(proxy: Proxy, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=key, max_retries=0)


def anthropic_client(proxy: Proxy, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=proxy.url, api_key=key, max_retries=0)
