"""Converts an upstream's errors to failures: OpenAI's `{"error": {...}}`, Ollama's `{"error": "text"}`, FastAPI's
`{"detail": ...}`, vLLM's `{"object": "error", ...}`, llama.cpp's with a number as `code`, LiteLLM's with one in a
string, and HTML pages. A failure quotes the upstream's text without addresses, and with `[hidden]` in place of secrets,
also where JSON has escaped their characters; of a refused key, which may be in it, it quotes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import MAX_UNANSWERED
from codex_proxy.agents.shared.failures import clean_text, failure_from_text
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.json_values import UNREADABLE, object_at, value_at
from codex_proxy.core.repair import MAX_ITEMS, MAX_OPEN_ITEMS
from codex_proxy.parts.upstream.config import CHAT, SettingNames
from codex_proxy.parts.upstream.stream import BOM, AnswerReader, error_of

HIDDEN: Final = "[hidden]"
_HIDDEN: Final = HIDDEN.encode()


class Secrets:
    """Replaces secrets in a whole text (`hide`), or in chunks (`SecretsReader`)."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """`secrets` are printable ASCII."""
        self.texts = tuple(
            secret.encode() for secret in sorted(set(secrets), key=len, reverse=True) if secret
        )
        patterns = (b"".join(map(_pattern_of, secret)) for secret in self.texts)
        self._pattern = re.compile(b"|".join(patterns))
        self._first = re.compile(b"[%b\\\\]" % b"".join(re.escape(secret[:1]) for secret in self.texts))

    def hide(self, data: bytes) -> bytes:
        if b"\\" in data and self.texts:
            return self._pattern.sub(_HIDDEN, data)
        for secret in self.texts:
            if secret in data:
                data = data.replace(secret, _HIDDEN)
        return data

    def partial_length(self, data: bytes) -> int:
        """Returns how many last bytes may begin a secret."""
        if data.endswith(b"\n") or not self.texts:
            return 0
        tail = data[-6 * len(self.texts[0]) :]
        for begin in self._first.finditer(tail):
            if any(_may_begin(tail[begin.start() :], secret) for secret in self.texts):
                return len(tail) - begin.start()
        return 0


class SecretsReader:
    """Reads one answer's chunks. What may begin a secret is held back until the next chunk, or `close`."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._secrets.texts:
            return chunk
        data = self._secrets.hide(self._held + chunk if self._held else chunk)
        held = self._secrets.partial_length(data)
        if not held:
            self._held = b""
            return data
        self._held = data[-held:]
        return data[:-held]

    def close(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _pattern_of(char: int) -> bytes:
    plain = re.escape(bytes([char]))
    escaped = b"\\\\u00(?i:%02x)" % char
    return (
        b"(?:%b|%b|\\\\%b)" % (plain, escaped, plain)
        if chr(char) in '"\\/'
        else b"(?:%b|%b)" % (plain, escaped)
    )


def _may_begin(data: bytes, secret: bytes) -> bool:
    """Whether `data` may begin the secret, whose characters may be written as in `_pattern_of`."""
    at = 0
    for char in secret:
        rest = data[at : at + 6].lower()
        if not rest:
            break
        if (b"\\u00%02x" % char).startswith(rest):
            at += len(rest)
        elif rest[:1] == b"\\" and rest[1:2] in (b"", bytes([char]).lower()):
            at += 2
        elif data[at] == char:
            at += 1
        else:
            return False
    return at >= len(data)


K = FaultKind

MAX_ERROR_BYTES: Final = 1 << 20
"""Maximum bytes that are read of an error's body."""
_MAX_WAIT: Final = 7 * 86400.0  # seconds; more is no time to wait but a broken clock

CLOSED: Final = Failure(
    K.UPSTREAM_DISCONNECTED,
    "The model server closed the connection without an answer. Send the request again.",
)
BROKEN_OFF: Final = Failure(
    K.UPSTREAM_DISCONNECTED, "The model server's answer ended before it was complete. Send the request again."
)
NO_JSON: Final = Failure(K.UPSTREAM_ERROR, "The model server sent data that is not valid JSON.")
NO_NUMBERS: Final = Failure(
    K.UPSTREAM_ERROR,
    "The model server answered with NaN or Infinity in place of a number. Send another input, or ask the operator "
    "to look at the model server.",
)
NO_ANSWER: Final = Failure(
    K.UPSTREAM_ERROR,
    "The model server's answer is not in the format of Chat Completions. The operator must "
    "check the address of the upstream (it usually ends with /v1).",
)
EMPTY_ANSWER: Final = Failure(
    K.UPSTREAM_ERROR,
    "The model server ended its answer without any content or finish reason. Send the request again.",
)
TOO_LONG: Final = Failure(
    K.UPSTREAM_ERROR,
    "The model server sent an event that is too long or nested too deep, or too much data without an event.",
)
CONTRADICTION: Final = Failure(
    K.UPSTREAM_ERROR,
    "The model server has sent the same part of its answer in two versions. Send the request again.",
)
TOO_MANY_CALLS: Final = Failure(
    K.UPSTREAM_ERROR,
    f"The model server called more than {MAX_UNANSWERED} tools at once. Ask for less at once.",
)
TOO_MANY_ITEMS: Final = Failure(
    K.UPSTREAM_ERROR,
    f"The model server began more than {MAX_OPEN_ITEMS} items of its answer at once, or {MAX_ITEMS} in one turn. Ask "
    "for less at once.",
)
TOO_MUCH: Final = Failure(
    K.UPSTREAM_ERROR, "The model server's answer is too large. Ask for less, or for no images."
)
_KEY_REFUSED: Final = (
    "The model server rejected this server's credentials. The operator of this server must check {}."
)
CLIENTS_KEY_REFUSED: Final = Failure(
    K.INVALID_API_KEY,
    "The model server rejected your API key, which this server passes on. Send a key that is valid there.",
)

_EXCESS: Final = r"exceed|too |(?<!\w)max(?!_)|larger|longer|greater|beyond|\b(?:over|full|only)\b|\d{3}"
"""What stands beside the words "context length" where it is too short, and not where they name a field."""
CONTEXT_WORDS: Final = (
    (r"context_length_exceeded|exceed_context_size", "context_length_exceeded"),
    (
        rf"context[ _](?:window|size|length|limit)(?:\b|_(?=exceed)).{{0,80}}(?:{_EXCESS})",
        "'max_tokens' is too large: 9000. This model's context length is 8192 tokens.",
    ),
    (
        rf"(?:{_EXCESS}).{{0,80}}context[ _](?:window|size|length|limit)\b",
        "the request exceeds the available context size, try increasing it",
    ),
    (
        r"(?:prompt|input) is too long|prompt tokens too long",
        "prompt is too long: 204801 tokens > 200000 maximum",
    ),
    (r"too many (?:input )?tokens", "too many tokens: size limit exceeded by 5 tokens"),
    (
        r"input token count\b.{0,40} exceeds",  # Gemini
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    (
        r"maximum prompt length",  # xAI
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    ),
    (
        r"exceeded model token limit",  # Kimi
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
    ),
    (
        r"prompt token count\b.{0,40} exceeds",
        "prompt token count of 130000 exceeds the limit of 128000",
    ),  # Copilot
    (r"reduce the length of the messages", "Please reduce the length of the messages or completion."),  # Groq
    (r"prompt exceeds max(?:imum)? length", "Prompt exceeds max length"),  # Z.ai
    (
        r"longer than the maximum model length",  # vLLM
        "The decoder prompt (length 40000) is longer than the maximum model length of 32768.",
    ),
    (
        r"range of input length should be",  # DashScope
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
    ),
    (
        r"(?:input|prompt)(?: (?:of|length|size|text|sequence|messages|tokens?|\d+)){0,4}(?: \([^)]{0,40}\))? "
        r"exceeds?\b.{0,20} (?:max(?:imum)?\b.{0,20} length|max_seq_len)",
        "Input length (40000 tokens) exceeds the maximum allowed length (32767 tokens).",  # SGLang, Volcengine
    ),
    (
        r"(?<!\w)(?:(?:input|prompt)[ _])?tokens\b.{0,30} exceeds? (?:the )?(?:max|configured) ",
        "Total tokens of image and text exceed max message tokens",  # Volcengine, Hunyuan, OpenAI
    ),
    (
        r"must be less than max_seq_len|exceed max_num_tokens",  # SiliconFlow, TensorRT-LLM
        "length of prompt_tokens (40000) must be less than max_seq_len (32768).",
    ),
    (
        r"inputs\W{1,2} must have less than",
        "`inputs` must have less than 4096 tokens. Given: 5000",
    ),  # Together
    (
        r"input tokens exceeded",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length.",
    ),  # Bedrock
    (r"prompt is longer than", "Prompt is longer than the maximum sequence length"),  # MLX
    (
        r"inputs\W{1,3}tokens \+ \W?max_new_tokens\W{1,2}must be",  # Text Generation Inference
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    ),
)
"""What servers say of a context that is too long, each with an example."""
_CONTEXT: Final = re.compile("|".join(words for words, _ in CONTEXT_WORDS), re.IGNORECASE)
_OUTPUT_LIMIT: Final = re.compile(
    r"\bmax_(?:completion_|output_)?tokens\W{1,12}(?:or \W?max_tokens\W{1,3})?must be less than",
    re.IGNORECASE,
)
"""Matches what servers say of `max_tokens` alone; some of them compare it with the context."""
_MODEL: Final = re.compile(
    r"\bmodel\b.{0,200}?(?:does not exist|not found|not loaded|unknown|not supported)|\binvalid[ _]model(?: name)?\b|"
    r"\bmodels/.{0,200}?not found|\bnot a valid model\b|\bno endpoints found for\b",
    re.IGNORECASE,
)
_PATH: Final = re.compile(
    r"\b(?:invalid|unknown|unrecognized)\b.{0,20}\b(?:url|path|endpoint)\b|^\W*(?:file |page |resource )?not found\W*$|"
    r"\b(?:url|path|route|endpoint|method)\b.{0,100}\b(?:not found|does not exist|not allowed)",
    re.IGNORECASE,
)
"""Matches what servers say of a path that they do not have."""
_OF_KEYS: Final = re.compile(
    r"\bkeys?\b|api[ _-]?key|credential|(?:\b|un)auth(?:enti|ori[sz]|\b)|permission|"
    r"\bforbidden\b|access[ _](?:denied|token)",
    re.IGNORECASE,
)
"""Matches what servers say, with the status 403, of a key."""
_NO_KEY_OF_LITELLM: Final = "no_db_connection"
"""How LiteLLM's proxy refuses a key without a database, with the status 400."""
_MESSAGES: Final = ("message", "detail", "msg", "error_msg", "errors", "base_resp", "status_msg")
"""The fields that have an error's message, or an object or a list with it."""
_PARAM = re.compile(r"[A-Za-z0-9_.\[\]-]{1,100}")
_NOT_THE_REQUEST: Final = {K.UPSTREAM_ERROR, K.UPSTREAM_TIMEOUT, K.UPSTREAM_DISCONNECTED, K.UNAVAILABLE}
"""Failures that are no fault of the request, although a status may say so."""
_NO_ENDPOINT: Final = frozenset({404, 405, 501})
"""The statuses of a server without the endpoint."""
_REDIRECT_MESSAGE: Final = (
    "The model server answered with a redirect (HTTP {}), which this server does not follow. "
    "The operator must set the final address."
)


class ErrorReader:
    def __init__(
        self,
        secrets: Sequence[str] = (),
        *,
        clients_key: bool = False,
        path: str = CHAT.path,
        setting_names: SettingNames = SettingNames(),  # noqa: B008
    ) -> None:
        """`secrets` are replaced by `[hidden]`. `clients_key`: a 401 is the client's fault. `setting_names`: what a
        message advises to check.
        """
        self._secrets = tuple(secret for secret in secrets if secret)
        self._path = path
        self._names = setting_names
        message = _KEY_REFUSED.format(setting_names.key)
        of_operator = Failure(K.UPSTREAM_UNAUTHORIZED, message)
        self._key_refused = CLIENTS_KEY_REFUSED if clients_key else of_operator

    def of_response(self, status: int, headers: Mapping[str, str], body: bytes, now: float) -> Failure:
        """Converts an error status or redirection. `now`: seconds since 1970, for dates in headers."""
        if 300 <= status < 400:
            return Failure(K.UPSTREAM_ERROR, _REDIRECT_MESSAGE.format(status))
        value = error_of(_value_of(body))
        failure = self._failure_in(value, status)
        of_path = status in _NO_ENDPOINT and not (status == 404 and _is_of_the_request(value))
        if of_path and failure.kind in (K.UPSTREAM_ERROR, K.REJECTED_BY_PROVIDER):
            return self._no_endpoint(status, message_in(value))
        wait = _wait_of(headers, now)
        return failure if wait is None else msgspec.structs.replace(failure, retry_after=wait)

    def _no_endpoint(self, status: int, message: str) -> Failure:
        words = self._without_secrets(clean_text(message))
        said = f"HTTP {status}: {words}" if words else f"HTTP {status}"
        names = self._names
        message = (
            f"The model server has no {self._path} ({said}). The operator of this server must "
            f"check {names.url}, which usually ends with /v1, and {names.wire}."
        )
        return Failure(K.AGENT_MISCONFIGURED, message, quoted=words)

    def of_event(self, value: Any) -> Failure:
        """Converts an error inside an answer. `value`: the error's decoded JSON."""
        value = error_of(value)
        error = value.get("error", value) if isinstance(value, dict) else value
        return self._failure_in(value, _status_in(error))

    def _failure_in(self, value: Any, status: int | None) -> Failure:
        error = _error_in(value)
        said = message_in(value)
        names = " ".join(str(error.get(name) or "") for name in ("code", "type", "status"))
        refuses_key = status == 403 and (not said or _OF_KEYS.search(f"{names} {said}"))
        if status == 401 or refuses_key or error.get("type") == _NO_KEY_OF_LITELLM:
            return self._key_refused
        words = self._without_secrets(clean_text(said))
        code, kind = error.get("code"), error.get("type")
        if not isinstance(code, str) or code.isdigit():
            code = None  # a number is a status
        found = failure_from_text(_as_text(words, code, kind), http_status=status)
        fault = _fault_of(found.kind, status, f"{code} {kind} {words}")
        if fault is not found.kind:
            shown = code if fault is K.REJECTED_BY_PROVIDER else None
            found = Failure(fault, words or found.message, code=shown)
        param = error.get("param")
        if isinstance(param, str) and _PARAM.fullmatch(param) and fault is K.REJECTED_BY_PROVIDER:
            found = msgspec.structs.replace(found, param=param)
        for name in ("code", "param"):
            if self._without_secrets(given := getattr(found, name) or "") != given:
                found = msgspec.structs.replace(found, **{name: None})
        return msgspec.structs.replace(found, quoted=words if f": {words}" in found.message else "")

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[hidden]")
        return text


def _fault_of(found: FaultKind, status: int | None, text: str) -> FaultKind:
    """Corrects the kind that `failure_from_text` has found by rules made for Codex. `text`: the error's code, type and
    message.
    """
    of_output = _OUTPUT_LIMIT.search(text) is not None
    # llama.cpp says 500 where the input is to blame.
    may_be_context = not of_output and (status is None or status in (400, 404, 413, 422, 500))
    if may_be_context and _CONTEXT.search(text):
        return K.CONTEXT_LENGTH_EXCEEDED
    if found is K.CONTEXT_LENGTH_EXCEEDED and (of_output or status in (400, 422)):
        return K.REJECTED_BY_PROVIDER  # it speaks of a field of that name
    if status in (400, 404) and _MODEL.search(text):
        return K.MODEL_NOT_FOUND
    if status == 403 and found is K.UPSTREAM_UNAUTHORIZED:
        return K.REJECTED_BY_PROVIDER
    if status == 404 and found is K.UPSTREAM_ERROR:
        return K.REJECTED_BY_PROVIDER
    if found in (K.AGENT_NOT_AUTHENTICATED, K.AGENT_MISCONFIGURED, K.AGENT_CRASHED):
        return K.REJECTED_BY_PROVIDER if status is not None and status < 500 else K.UPSTREAM_ERROR
    if status in (400, 422) and found in _NOT_THE_REQUEST:
        return K.REJECTED_BY_PROVIDER
    if found is K.UPSTREAM_TIMEOUT and status is not None:
        # It has answered, so that another attempt may help at once.
        return K.UNAVAILABLE if status == 408 else K.UPSTREAM_ERROR
    return found


def _as_text(words: str, code: object, kind: object) -> str:
    vague = kind == "server_error" or not isinstance(kind, str)  # the words beside it say more
    error = {
        "message": words,
        "code": None if code == "server_error" else code,
        "type": None if vague else kind,
    }
    return json.dumps({"error": error})


def _is_of_the_request(value: Any) -> bool:
    """Whether the error of a 404 is about the request, and not about the path: a JSON error that says something else
    than that there is no such path.
    """
    return (
        isinstance(value_at(value, "error"), dict)
        and bool(said := message_in(value))
        and not _PATH.search(said)
    )


def _status_in(error: Any) -> int | None:
    code = value_at(error, "code")
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
        return code
    return 400 if value_at(error, "type") == "invalid_request_error" else None


def _value_of(body: bytes) -> Any:
    """Returns an error's JSON, also where it comes as an event; else its text."""
    body = body[:MAX_ERROR_BYTES].removeprefix(BOM)
    if not body.lstrip().startswith((b"{", b"[", b"<")):
        reader = AnswerReader()
        events = (*reader.feed(body + b"\n"), *reader.close())
        found = next((event.value for event in events if event.kind in ("chunk", "error")), None)
        if found is not None:
            return found
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except UNREADABLE:
        return text


def _error_in(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        return {}
    return object_at(value.get("error", value))


def message_in(value: Any) -> str:
    """Returns an error's message, in any known form; empty for an HTML page."""
    if isinstance(value, str):
        return "" if value.lstrip().startswith("<") else value.strip()
    if not isinstance(value, dict):
        return ""
    error = value.get("error", value)
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return ""
    said = next((error[name] for name in _MESSAGES if error.get(name)), None)
    if isinstance(said, str):
        raw = value_at(error, "metadata", "raw")  # what OpenRouter's provider said, as JSON or text
        return (
            said
            if not isinstance(raw, str)
            else f"{said}: {message_in(_value_of(raw.encode('utf-8', 'replace')))}"
        )
    if isinstance(said, list):  # FastAPI's: one object for each field; Cloudflare's: one for each error
        return "; ".join(_field_fault(each) for each in said[:5])
    if isinstance(said, dict):
        return next((each for name in _MESSAGES if isinstance(each := said.get(name), str)), "")
    return ""


def _field_fault(each: Any) -> str:
    if not isinstance(each, dict):
        return str(each)
    place = each.get("loc")
    where = ".".join(str(step) for step in place) if isinstance(place, list) else ""
    said = each.get("msg") or each.get("message")
    return f"{where}: {said}" if where else str(said)


def _wait_of(headers: Mapping[str, str], now: float) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        given = headers.get(name, "").strip()
        if not given:
            continue
        try:
            seconds = float(given) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(given).timestamp() - now
            except (ValueError, TypeError, OverflowError):
                continue
        if math.isfinite(seconds) and seconds <= _MAX_WAIT:
            return max(0.0, seconds)
    return None
