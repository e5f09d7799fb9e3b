"""The models that the parsers of real servers read in a body: of each the first and the last name, in any case."""

from __future__ import annotations

import email.parser
import email.policy
import io
import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import Mock
from urllib.parse import unquote

from aiohttp import BodyPartReader, MultipartReader
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from python_multipart.multipart import MultipartParser, parse_options_header
from werkzeug.formparser import FormDataParser
from werkzeug.http import parse_options_header as werkzeug_options

Pairs = list[tuple[str, str]]


def _email(body: bytes, kind: str, policy: Any = email.policy.HTTP) -> Pairs:
    head = f"Content-Type: {kind}\r\n\r\n".encode("utf-8", "surrogateescape")
    message = email.parser.BytesParser(policy=policy).parsebytes(head + body)
    return [
        (
            str(part.get_param("name", "", "content-disposition")),
            str(part.get_payload(decode=True) or b"", "latin-1"),
        )
        for part in message.walk()
        if not part.is_multipart()
    ]


def _old_email(body: bytes, kind: str) -> Pairs:
    return _email(body, kind, email.policy.compat32)


def _python_multipart(body: bytes, kind: str) -> Pairs:
    """As Starlette does it."""
    _, options = parse_options_header(kind.encode("utf-8", "surrogateescape"))
    pairs: Pairs = []
    field, value, data = bytearray(), bytearray(), bytearray()
    headers: dict[bytes, bytes] = {}

    def begin() -> None:
        headers.clear()
        data.clear()

    def end_header() -> None:
        headers[bytes(field).lower()] = bytes(value)
        field.clear()
        value.clear()

    def end() -> None:
        _, found = parse_options_header(headers.get(b"content-disposition", b""))
        pairs.append((found.get(b"name", b"").decode("latin-1"), data.decode("latin-1")))

    parser = MultipartParser(
        options.get(b"boundary", b""),
        {
            "on_part_begin": begin,
            "on_header_field": lambda given, start, stop: field.extend(given[start:stop]),
            "on_header_value": lambda given, start, stop: value.extend(given[start:stop]),
            "on_header_end": end_header,
            "on_part_data": lambda given, start, stop: data.extend(given[start:stop]),
            "on_part_end": end,
        },
    )
    parser.write(body)
    parser.finalize()
    return pairs


def _werkzeug(body: bytes, kind: str) -> Pairs:
    mime, options = werkzeug_options(kind)
    parser = FormDataParser(silent=False, stream_factory=lambda *_: io.BytesIO())
    _, form, files = parser.parse(io.BytesIO(body), mime, len(body), options)
    read = ((name, file.read().decode("latin-1")) for name, file in files.items(multi=True))
    return [*form.items(multi=True), *read]


def _aiohttp(body: bytes, kind: str) -> Pairs:
    async def read() -> Pairs:
        stream = StreamReader(Mock(_reading_paused=False), 1 << 16, loop=Mock())
        stream.feed_data(body)
        stream.feed_eof()
        pairs: Pairs = []
        async for part in MultipartReader(CIMultiDict({"Content-Type": kind}), stream):
            if isinstance(part, BodyPartReader):
                pairs.append((part.name or "", (await part.read()).decode("latin-1")))
        return pairs

    reading = read()  # it waits for nothing: all has come
    try:
        reading.send(None)
    except StopIteration as end:
        found: Pairs = end.value
        return found
    finally:
        reading.close()
    return []


FORM_READERS: Final[dict[str, Callable[[bytes, str], Pairs]]] = {
    "email": _email,
    "email of Python 2": _old_email,
    "Starlette": _python_multipart,
    "Werkzeug": _werkzeug,
    "aiohttp": _aiohttp,
}

NODE: Final = """
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
(async () => {
  const found = [];
  for (const [kind, body] of cases) {
    try {
      const form = await new Response(Buffer.from(body, "base64"), { headers: { "content-type": kind } }).formData();
      const pairs = [];
      for (const [name, value] of form) pairs.push([name, typeof value === "string" ? value : await value.text()]);
      found.push(pairs);
    } catch { found.push([]); }
  }
  console.log(JSON.stringify(found));
})();
"""


def read_by_node(cases: list[tuple[str, str]]) -> list[Pairs]:
    """The fields of forms (content type, and body in base64) by the parser of Node's `fetch`."""
    done = subprocess.run(
        ["node", "-e", NODE], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    found: list[Pairs] = json.loads(done.stdout)
    return found


def is_model(name: str) -> bool:
    """Whether a lenient server looks a field of this name up as `model`."""
    return unquote(name).split("\0")[0].strip(" []").casefold() == "model"


def models_in_form(body: bytes, kind: str) -> Iterator[tuple[str, str]]:
    """Yields each parser with each model that it reads in a form; none where it cannot read it."""
    for reader, read in FORM_READERS.items():
        try:
            pairs = read(body, kind)
        except Exception:  # noqa: BLE001 - whatever it is: that server refuses the form
            continue
        yield from ((reader, value.strip()) for name, value in pairs if is_model(name))


def models_in_json(body: bytes) -> Iterator[tuple[str, str]]:
    """Yields the names of models in a JSON body: each member of this name, however often it is there."""

    def pairs_of(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return pairs

    def walk(value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, list):
            for each in value:
                if isinstance(each, tuple):
                    name, inner = each
                    if is_model(name) or name in ("models", "fallbacks", "draft_model"):
                        yield from ((name, text) for text in texts(inner))
                    elif name not in ("messages", "input", "metadata"):
                        yield from walk(inner)
                else:
                    yield from walk(each)

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for each in value:
                yield from texts(list(each) if isinstance(each, tuple) else each)

    yield from walk(json.loads(body, object_pairs_hook=pairs_of))
