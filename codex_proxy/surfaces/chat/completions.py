"""The Completions API for an agent: a turn of one message. Raises `Fault` INVALID_REQUEST, MODEL_NOT_FOUND or
NOT_ALLOWED.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Unpack

import msgspec
from pydantic import Field

from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.options import NAMES, SAMPLING
from codex_proxy.surfaces.answers.renderer import OneTextRenderer, RenderOptions, Text, json_bytes, raw_text
from codex_proxy.surfaces.errors import DONE, error_frames
from codex_proxy.surfaces.models import DEFAULT_NAME, resolve
from codex_proxy.surfaces.requests.body import (
    Penalty,
    Positive,
    RequestModel,
    Seed,
    Share,
    StopSequence,
    UpToTwo,
    parse_as,
)
from codex_proxy.surfaces.requests.fields import ByKind, Ignored, Refused, ignored_fields
from codex_proxy.surfaces.requests.options import (
    FieldNames,
    ParseContext,
    ParsedRequest,
    non_null_fields,
    options_as_given,
    place_of,
    refuse_stream_options,
    stops_of,
)

FIELDS: Final = FieldNames(input="prompt", input_item="prompt", options=NAMES["completions"])

ONE_COMPLETION_ONLY: Final = (
    "an agent gives one completion of one text: leave this field out, or name a model of an upstream"
)
_Text = Annotated[str, Field(min_length=1)]


class StreamOptions(RequestModel):
    include_usage: bool | None = None


class CompletionRequest(RequestModel, extra="allow"):
    """The body of `POST /v1/completions` for a model of an agent."""

    prompt: Annotated[_Text | Annotated[list[_Text], Field(min_length=1, max_length=1)], ByKind()]
    model: str | None = None
    max_tokens: Positive | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[StopSequence | Annotated[list[StopSequence], Field(max_length=4)], ByKind()] | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    temperature: UpToTwo | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    suffix: Annotated[
        Any,
        Refused(
            "agents cannot fill in before a suffix: leave it out, or name a model of an upstream that can"
        ),
    ] = None
    echo: Annotated[Any, Refused(ONE_COMPLETION_ONLY)] = None
    best_of: Annotated[Any, Ignored()] = None
    logprobs: Annotated[Any, Ignored(also_zero=True)] = None
    logit_bias: Annotated[Any, Ignored()] = None
    user: Annotated[Any, Ignored()] = None


class ParsedCompletion(ParsedRequest, frozen=True, kw_only=True):
    """A parsed request. `include_usage`: the stream gets a chunk with the usage."""

    fields: FieldNames = FIELDS
    include_usage: bool


def parse(body: bytes, pdfs: PdfTexts | None = None, *, context: ParseContext) -> ParsedCompletion:
    """Parses the body of `POST /v1/completions` into a turn of one message. `pdfs` is not used."""
    request, notes = parse_as(CompletionRequest, body)
    asked = DEFAULT_NAME if request.model is None else request.model
    resolved = resolve(asked, context.catalog)
    refuse_stream_options(request.stream_options, request.stream)
    place = place_of(resolved, context, None, client_acts=False)
    prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[0]
    turn = msgspec.structs.replace(
        place.turn,
        history=(HistoryMessage("user", (TextPart(prompt),)),),
        effort=resolved.effort,
        sampling=non_null_fields(request, SAMPLING["completions"]),
        stop=stops_of(request.stop),
        max_tokens=request.max_tokens,
        **options_as_given(request, "completions"),
    )
    return ParsedCompletion(
        turn=turn,
        model_asked=asked,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        ignored=ignored_fields(notes),
        workdir_param=place.workdir_param,
    )


class CompletionRenderer(OneTextRenderer):
    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        include_usage: bool = False,
        **options: Unpack[RenderOptions],
    ) -> None:
        super().__init__(**options)
        self._head = {
            "id": raw_text(id),
            "object": "text_completion",
            "created": created,
            "model": raw_text(model),
        }
        before, _, after = self._frame(self._body("", None)).rpartition(b'"text":""')
        self._content = Text(before + b'"text":', after)
        self._include_usage = include_usage

    def _body(self, text: Any, reason: str | None) -> dict[str, Any]:
        ended = None if reason is None else raw_text(reason)
        choice = {"finish_reason": ended, "index": 0, "logprobs": None, "text": text}
        return {**self._head, "choices": [choice]}

    @staticmethod
    def _frame(body: dict[str, Any]) -> bytes:
        return b"data: " + json_bytes(body) + b"\n\n"

    def _whole(self) -> bytes:
        whole = self._body(self._content.whole(), self.finish_reason)
        return json_bytes({**whole, "usage": self._usage()})

    def _usage(self) -> dict[str, Any]:
        usage = self._tokens()
        figures: dict[str, Any] = {"prompt_tokens": usage.input, "completion_tokens": usage.output}
        figures["total_tokens"] = usage.input + usage.output
        if self.spent.is_estimated:
            figures["estimated"] = True
        return figures

    def _error(self, failure: Failure) -> bytes:
        return error_frames(failure)

    def _end(self, out: list[bytes]) -> None:
        out.append(self._frame(self._body("", self.finish_reason)))
        if self._include_usage:
            out.append(self._frame({**self._head, "choices": [], "usage": self._usage()}))
        out.append(DONE)
