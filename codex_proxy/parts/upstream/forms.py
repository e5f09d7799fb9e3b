"""Finds the model's name in a form (`multipart/form-data`) that is sent on. Raises `Fault` INVALID_REQUEST for one
that is unreadable, or that can be read in more than one way.

A form is read while it comes, and made anew from what was read, so that no other parser can read another `model` in
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.surfaces.requests.fields import MODEL, may_name_models, reads_as_model, unescaped
from codex_proxy.surfaces.requests.passed import PassedBody

MAX_NAME: Final = 1_000
"""Maximum bytes of the model's name."""
MAX_PARTS: Final = 1_000
"""Maximum parts: OpenAI's forms have some dozens."""
MAX_HEAD: Final = 8 << 10
"""Maximum bytes of the headers of a part."""
MAX_NAMES: Final = 64 << 10
"""Maximum bytes of a field that may name models."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(
    rb'[ \t]*;[ \t]*(%b)[ \t]*=[ \t]*(?:"((?:[^"\\\x00-\x1f\x7f]|\\["\\])*)"|(%b))' % (_TOKEN, _TOKEN)
)
_END: Final = re.compile(rb"[ \t]*(?:;[ \t]*)?")
_LINE: Final = re.compile(rb"(%b):([^\x00-\x08\x0a-\x1f\x7f]*)" % _TOKEN)
_MEDIA_TYPE: Final = re.compile(rb"(%b)/%b" % (_TOKEN, _TOKEN))
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=?-]{1,70}")
_UNENCODED: Final = (b"binary", b"8bit", b"7bit")
_CHARSETS: Final = (b"utf-8", b"utf8", b"us-ascii", b"ascii")
_NESTED: Final = (b"multipart", b"message")
_UNSAFE: Final = re.compile(rb'["\\\x00-\x1f\x7f]')


class _Part(NamedTuple):
    name: str
    is_file: bool
    head: bytes
    """Its headers, made anew, as long as the client's."""


def boundary_of(content_type: str) -> bytes:
    """Returns the boundary of a form. Raises `Fault` if there is none, or parsers may find another one."""
    given = content_type.strip().encode("utf-8", "surrogateescape")
    kind, parameters = _parameters(given, "content type of the form")
    found = parameters.pop(b"boundary", b"")
    if kind.lower() != b"multipart/form-data" or any(name.startswith(b"boundary") for name in parameters):
        raise _unclear("its content type has several boundaries")
    if not found:
        raise bad_request("The content type of the form has no 'boundary'.")
    if not _BOUNDARY.fullmatch(found):
        raise _unclear("its boundary has other characters than RFC 2046 allows, or more than 70")
    return found


class FormReader:
    """Takes the bytes of a form, and returns those of the same form made anew: the same boundary and contents, and of
    the headers only what was understood. Both are equally long, so that the length of a form is known before its end.
    """

    def __init__(self, content_type: str) -> None:
        """Raises `Fault` as `boundary_of`."""
        boundary = boundary_of(content_type)
        quoted = boundary if re.fullmatch(_TOKEN, boundary) else b'"%b"' % boundary
        self.content_type = "multipart/form-data; boundary=" + quoted.decode()
        """The content type of the form made anew."""
        self.model: str | None = None
        self.place = (0, 0)
        """Where the model's name begins and ends in the bytes that were returned."""
        self.named: list[tuple[str, str]] = []
        """The other fields that may name models, with their values."""
        self._mark = b"--" + boundary
        self._held = bytearray()
        self._out = bytearray()
        self._returned = 0
        self._parts = 0
        self._part = _Part("", True, b"")
        self._step: Callable[[], bool] = self._begin

    @property
    def held(self) -> int:
        """The bytes that were taken, and not returned yet."""
        return len(self._held)

    def feed(self, data: bytes | memoryview) -> bytes:
        """Returns the next bytes of the form made anew. Raises `Fault`."""
        self._held += data
        while self._step():
            pass
        out, self._out = bytes(self._out), bytearray()
        self._returned += len(out)
        return out

    def end(self) -> None:
        """Raises `Fault` if the form has not ended."""
        if self._step != self._finish or self._held:
            raise bad_request("The request body is a form that ends too early.")

    def _emit(self, size: int) -> None:
        self._out += self._held[:size]
        del self._held[:size]

    def _begin(self) -> bool:
        if len(self._held) < len(self._mark):
            return False
        if not self._held.startswith(self._mark):
            raise bad_request("The request body is not a form with the boundary of its content type.")
        self._emit(len(self._mark))
        self._step = self._read_delimiter
        return True

    def _read_delimiter(self) -> bool:
        if len(self._held) < 2:
            return False
        behind = bytes(self._held[:2])
        self._emit(2)
        if behind not in (b"\r\n", b"--"):
            raise _unclear("its boundary is also in a content, or has something behind it")
        self._step = self._read_head if behind == b"\r\n" else self._finish
        return True

    def _read_head(self) -> bool:
        end = self._held.find(b"\r\n\r\n", 0, MAX_HEAD + 4)
        if end < 0:
            if len(self._held) > MAX_HEAD:
                raise bad_request(f"A part of the form has more than {MAX_HEAD} bytes of headers.")
            return False
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise bad_request(f"The form has more parts than are read: the first {MAX_PARTS} parts.")
        self._part = part = _read_head(bytes(self._held[:end]))
        if reads_as_model(part.name) and (part.name != MODEL or part.is_file or self.model is not None):
            raise bad_request("The form has 'model' twice, as a file, or in another spelling.", MODEL)
        del self._held[: end + 4]
        self._out += part.head + b"\r\n\r\n"
        names = not part.is_file and (part.name == MODEL or may_name_models(part.name))
        self._step = self._read_names if names else self._read_content
        return True

    def _read_content(self) -> bool:
        end = self._find_mark()
        if end is None:
            self._emit(len(self._held) - self._beginning_of_mark())
            return False
        self._emit(end + 2 + len(self._mark))
        self._step = self._read_delimiter
        return True

    def _read_names(self) -> bool:
        """Reads a field that names models, which is returned when all of it has come."""
        end, name = self._find_mark(), self._part.name
        limit = MAX_NAME if name == MODEL else MAX_NAMES
        if (len(self._held) - len(self._mark) - 2 if end is None else end) > limit:
            raise bad_request(f"Invalid '{name}': it is longer than {limit} bytes.", name)
        if end is None:
            return False
        try:
            value = self._held[:end].decode()
        except UnicodeDecodeError:
            raise bad_request(f"Invalid '{name}': it is not UTF-8.", name) from None
        if name == MODEL:
            start = self._returned + len(self._out)
            self.model, self.place = value.strip(), (start, start + end)
        else:
            self.named.append((name, value))
        self._step = self._read_content
        return True

    def _find_mark(self) -> int | None:
        """Returns where the content ends, if it does."""
        found = self._held.find(self._mark)
        if found < 0:
            return None
        if self._held[max(0, found - 2) : found] != b"\r\n":
            raise _unclear("its boundary is also in a content, or has no line break before it")
        return found - 2

    def _beginning_of_mark(self) -> int:
        """Returns how many bytes at the end may be the beginning of a boundary."""
        tail = bytes(self._held[-len(self._mark) - 1 :])
        marks = (b"\r\n" + self._mark, self._mark)
        return next((size for size in range(len(tail), 0, -1) if _begins_any(marks, tail[-size:])), 0)

    def _finish(self) -> bool:
        if bytes(self._held) not in (b"", b"\r", b"\r\n"):
            raise _unclear("there is something behind its end")
        if self._held == b"\r\n":
            self._emit(2)
            self._step = self._finish
        return False


def _begins_any(marks: tuple[bytes, ...], beginning: bytes) -> bool:
    return any(mark.startswith(beginning) for mark in marks)


def _read_head(head: bytes) -> _Part:
    """Reads the headers of a part. Raises `Fault`."""
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        found = _LINE.fullmatch(line)
        if found is None or found[1].lower() in fields:
            raise _unclear(
                "a part has a header twice, or one that is not a name, a colon and a value in one line"
            )
        fields[found[1].lower()] = found[2].strip(b" \t")
    if fields.get(b"content-transfer-encoding", b"binary").lower() not in _UNENCODED:
        raise _unclear("a part has a Content-Transfer-Encoding")
    kind, parameters = _parameters(fields.get(b"content-disposition", b""), "Content-Disposition of a part")
    extended = [name for name in parameters if b"*" in name and name.startswith((b"name", b"filename"))]
    if kind.lower() != b"form-data" or b"name" not in parameters or extended not in ([], [b"filename*"]):
        raise _unclear("a part has no Content-Disposition with 'form-data' and one plain 'name'")
    name = parameters[b"name"]
    if _UNSAFE.search(name) or b"=?" in name:
        raise _unclear("the name of a part has a quote, a backslash or an encoding in it")
    filename = _filename(parameters)
    media_type = fields.get(b"content-type")
    if media_type is not None:
        _check_media_type(media_type, is_file=filename is not None)
    return _Part(_decoded(name), filename is not None, _made_anew(head, fields, name, filename))


def _made_anew(head: bytes, fields: dict[bytes, bytes], name: bytes, filename: bytes | None) -> bytes:
    """Returns the headers that a part needs, in the order and with the length of its `head`."""
    disposition = fields[b"content-disposition"]
    words = [_assignment(b"name", name, disposition)]
    if filename is not None:
        words.append(_assignment(b"filename", filename, disposition))
    made = b""
    for blank in (b" ", b""):  # without blanks none is longer than what it is made of
        lines = {
            b"content-disposition": b"Content-Disposition:%bform-data;\0%b"
            % (blank, (b";" + blank).join(words)),
            b"content-type": b"Content-Type:%b%b" % (blank, fields.get(b"content-type", b"")),
        }
        made = b"\r\n".join(lines[field] for field in fields if field in lines)
        if len(made) - 1 + len(blank) <= len(head):
            break
    return made.replace(b"\0", b" " * (len(head) - len(made) + 1))


def _assignment(name: bytes, value: bytes, given: bytes) -> bytes:
    """Returns a parameter with quotes, unless the client wrote it without."""
    bare = re.fullmatch(_TOKEN, value) and re.search(
        rb"[;\s]%b[ \t]*=[ \t]*%b" % (name, re.escape(value)), given
    )
    return name + (b"=%b" if bare else b'="%b"') % value


def _filename(parameters: dict[bytes, bytes]) -> bytes | None:
    """Returns the name of a file, without characters that some parsers read as its end; None for a field."""
    extended, plain = parameters.get(b"filename*"), parameters.get(b"filename")
    if plain is None and extended is not None:
        charset, _, value = extended.partition(b"'")
        if charset.lower() not in _CHARSETS:
            raise _unclear("the name of a file has another encoding than UTF-8")
        plain = unescaped(value.partition(b"'")[2])
    if plain is None:
        return None
    _decoded(plain)
    return _UNSAFE.sub(b"_", plain)


def _check_media_type(value: bytes, *, is_file: bool) -> None:
    kind, parameters = _parameters(value, "Content-Type of a part")
    found = _MEDIA_TYPE.fullmatch(kind)
    if found is None or found[1].lower() in _NESTED:
        raise _unclear("a part is itself a message, or its Content-Type is none")
    if not is_file and parameters.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        raise _unclear("a field has another encoding than UTF-8")


def _parameters(value: bytes, what: str) -> tuple[bytes, dict[bytes, bytes]]:
    """Returns what stands before the first semicolon, and the parameters by their names in lower case. Raises `Fault`
    for one that is repeated or unclear.
    """
    kind = re.match(rb"[^;\s]*", value)
    assert kind is not None, "it may be empty"
    found: dict[bytes, bytes] = {}
    at = kind.end()
    while parameter := _PARAMETER.match(value, at):
        name, quoted, bare = parameter[1].lower(), parameter[2], parameter[3]
        if name in found:
            raise _unclear(f"the {what} has a parameter twice")
        found[name] = bare if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted)
        at = parameter.end()
    if not _END.fullmatch(value, at):
        raise _unclear(f"the {what} cannot be read")
    return kind[0], found


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise _unclear("a name in it is not UTF-8") from None


def _unclear(why: str) -> Fault:
    return bad_request(f"The form can be read in more than one way: {why}.")


_STEP: Final = 1 << 20
"""The bytes of a form that are read at a time."""


def form_body(body: bytes | memoryview, content_type: str) -> PassedBody:
    """Reads a whole form. Raises `Fault` as `FormReader`, and if it ends too early."""
    reader, given = FormReader(content_type), memoryview(body)
    read = b"".join([reader.feed(given[at : at + _STEP]) for at in range(0, len(given), _STEP)])
    reader.end()
    return passed_form(read, reader)


def passed_form(body: bytes | memoryview, reader: FormReader) -> PassedBody:
    """Returns the form, or its beginning, that `reader` has returned as `body`."""
    return PassedBody(body, reader.model, reader.content_type, None, reader.place, tuple(reader.named))
