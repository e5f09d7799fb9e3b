"""A key that may use one model reaches no other: whatever a body says, the parsers of real servers read in what goes
upstream that model alone, or nothing goes there."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codex_proxy.core.faults import Fault
from codex_proxy.core.passing import PASSED_PATHS, pieces_of
from codex_proxy.parts.upstream.forms import form_body
from tests.access.keyed import key_header, write_keys
from tests.http.serving import Proxy
from tests.model_server import Upstream, proxy_before, upstream
from tests.parts.upstream.body_readers import models_in_form, models_in_json, read_by_node
from tests.parts.upstream.test_pass_through import Server, serving

OWN: Final = "say"
OTHER: Final = "embed"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


@pytest.fixture
async def proxy(server: Server, tmp_path: Path) -> AsyncIterator[Proxy]:
    write_keys(tmp_path, limited={"models": [OWN]}, free={})
    async with proxy_before(server.url, tmp_path) as running:
        yield running


# --- forms --------------------------------------------------------------------------------------

KIND: Final = "multipart/form-data; boundary=AaB03x"


def part(disposition: str, value: str, *more: str) -> bytes:
    lines = [f"Content-Disposition: form-data{disposition}", *more]
    return ("--AaB03x\r\n" + "\r\n".join(lines) + f"\r\n\r\n{value}\r\n").encode()


FILE: Final = part('; name="file"; filename="a.wav"', "RIFF", "Content-Type: audio/wav")
FIRST: Final = part('; name="model"', OWN)
END: Final = b"--AaB03x--\r\n"
SPELLED: Final = {
    "twice": '; name="model"',
    "in capitals": '; name="MODEL"',
    "with blanks": ' ;  name = "model"',
    "extended": "; name*=UTF-8''model",
    "extended and plain": "; name=\"other\"; name*=UTF-8''model",
    "continued": '; name*0="mo"; name*1="del"',
    "escaped": '; name="mo\\del"',
    "by percents": '; name="mod%65l"',
    "an encoded word": '; name="=?utf-8?q?model?="',
    "a file": '; name="model"; filename="m.txt"',
    "two names": '; name="other"; name="model"',
    "two names the other way": '; name="model"; name="other"',
    "in a filename": '; name="file"; filename="a\\"; name=\\"model"',
    "a filename first": '; filename="x"; name="model"',
    "an array": '; name="model[]"',
    "in brackets": '; name="[model]"',
    "a NUL": '; name="model\0"',
    "a blank in it": '; name="model "',
    "no quotes": "; name=model",
    "single quotes": "; name='model'",
    "half a quote": '; name="model',
    "folded": ';\r\n name="model"',
    "folded by a tab": ';\r\n\tname="model"',
    "no semicolon": ' name="model"',
    "a full-width letter": '; name="ｍodel"',
    "capitals in NAME": '; NAME="model"',
}
FORMS: Final[dict[str, tuple[str, bytes]]] = {
    **{f"{name}": (KIND, FIRST + FILE + part(spelled, OTHER) + END) for name, spelled in SPELLED.items()},
    **{
        f"{name}, first": (KIND, part(spelled, OTHER) + FILE + FIRST + END)
        for name, spelled in SPELLED.items()
    },
    **{f"{name}, alone": (KIND, part(spelled, OTHER) + FILE + END) for name, spelled in SPELLED.items()},
    "another boundary before": (
        "multipart/form-data; xboundary=AAA; boundary=AaB03x",
        FIRST
        + FILE.replace(
            b"RIFF", b'\r\n--AAA\r\nContent-Disposition: form-data; name="model"\r\n\r\nembed\r\n--AAA--'
        )
        + END,
    ),
    "two boundaries": ("multipart/form-data; boundary=AAA; boundary=AaB03x", FIRST + END),
    "a quoted boundary": ('multipart/form-data; boundary="AaB03x"', part('; name="model"', OTHER) + END),
    "an extended boundary": ("multipart/form-data; boundary*=utf-8''AAA; boundary=AaB03x", FIRST + END),
    "a boundary in quotes of another": (
        'multipart/form-data; x="; boundary=AAA"; boundary=AaB03x',
        FIRST + END,
    ),
    "no line break": (KIND, FIRST + b"--AaB03x\nContent-Disposition: form-data; name=model\n\nembed\n" + END),
    "line feeds in a head": (
        KIND,
        FIRST + b'--AaB03x\r\nX: y\nContent-Disposition: form-data; name="model"\r\n\r\nembed\r\n' + END,
    ),
    "a boundary in a file": (
        KIND,
        FIRST
        + FILE.replace(b"RIFF", b'x\n--AaB03x\nContent-Disposition: form-data; name="model"\n\nembed')
        + END,
    ),
    "blanks behind a boundary": (
        KIND,
        FIRST + b'--AaB03x \r\nContent-Disposition: form-data; name="model"\r\n\r\nembed\r\n' + END,
    ),
    "a longer boundary": (
        KIND,
        FIRST + b'--AaB03xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nembed\r\n' + END,
    ),
    "a part behind the end": (KIND, FIRST + END + part('; name="model"', OTHER) + END),
    "a part before the beginning": (KIND, b"x\r\n" + part('; name="model"', OTHER) + FIRST + END),
    "a nested form": (
        KIND,
        FIRST
        + part(
            '; name="more"',
            '--in\r\nContent-Disposition: form-data; name="model"\r\n\r\nembed\r\n--in--',
            "Content-Type: multipart/mixed; boundary=in",
        )
        + END,
    ),
    "a transfer encoding": (
        KIND,
        part('; name="model"', "ZW1iZWQ=", "Content-Transfer-Encoding: base64") + FILE + END,
    ),
    "another charset": (
        KIND,
        part('; name="model"', "+AGU-mbed", "Content-Type: text/plain; charset=utf-7") + END,
    ),
    "two dispositions": (
        KIND,
        FIRST + part('; name="x"', OTHER, 'Content-Disposition: form-data; name="model"') + END,
    ),
    "models": (KIND, FIRST + part('; name="models"', OTHER) + END),
    "models as JSON": (KIND, FIRST + part('; name="models"', '["say","embed"]') + END),
    "extra_body": (KIND, FIRST + part('; name="extra_body[model]"', OTHER) + END),
    "without a model": (KIND, FILE + END),
}


def form_headers(kind: str, key: str = "limited") -> dict[str, str]:
    return {"Content-Type": kind, **key_header(key)}


@pytest.mark.parametrize("name", FORMS)
async def test_a_form_of_a_limited_key_reaches_its_own_model_alone(
    name: str, proxy: Proxy, server: Server
) -> None:
    kind, form = FORMS[name]
    answer = await proxy.send("POST", "/v1/audio/transcriptions", form, headers=form_headers(kind))
    assert answer.status in (200, 400, 403), answer.text
    assert (answer.status == 200) == bool(server.requests)
    for asked in server.requests:
        found = list(models_in_form(asked.body, asked.headers["Content-Type"]))
        assert {model for _, model in found} == {OWN}


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
@pytest.mark.exhaustive
def test_nodes_parser_reads_one_model_in_every_form_that_is_sent_on() -> None:
    sent = []
    for kind, form in FORMS.values():
        try:
            read = form_body(form, kind)
        except Fault:
            continue
        sent.append((read.content_type, base64.b64encode(b"".join(pieces_of(read.with_model(OWN)))).decode()))
    for pairs in read_by_node(sent):
        assert [value for name, value in pairs if name.casefold().strip() == "model"] in ([OWN], [])


HEADS: Final = st.builds(
    lambda name, quote, blank, more, first: (
        f"Content-Disposition:{blank}form-data;{more if first else ''}{blank}name={quote}{name}{quote}"
        f"{'' if first else more}"
    ),
    st.sampled_from(
        ["model", "MODEL", "mo\\del", "model\\", 'mo"del', "file", "model[]", "x", "model;", "=?u?q?model?="]
    ),
    st.sampled_from(['"', "", "'"]),
    st.sampled_from([" ", "", "  ", "\t", "\r\n "]),
    st.sampled_from(
        [
            "",
            '; filename="a"',
            '; filename="a\\"; name=\\"model"',
            "; name*=UTF-8''model",
            "; name=model",
            "; x=y",
            ";",
        ]
    ),
    st.booleans(),
)
LINES: Final = st.sampled_from(
    [
        "Content-Type: text/plain",
        "Content-Type: multipart/mixed; boundary=b",
        "X: y",
        "Content-Transfer-Encoding: base64",
        "",
    ]
)
BREAKS: Final = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", " \r\n"])
PARTS: Final = st.builds(
    lambda mark, head, line, gap, value, end: (
        f"{mark}{gap}{head}{gap + line if line else ''}{gap}{gap}{value}{end}"
    ),
    st.sampled_from(["--b", "--b", "--b", "--b", "--bb", "---b", "--b--"]),
    HEADS,
    LINES,
    BREAKS,
    st.sampled_from(
        [
            OWN,
            OTHER,
            "",
            f"x\r\n--b\r\n{OTHER}",
            f'x\n--b\nContent-Disposition: form-data; name="model"\n\n{OTHER}',
        ]
    ),
    BREAKS,
)
KINDS: Final = st.sampled_from(
    [
        "multipart/form-data; boundary=b",
        'multipart/form-data; boundary="b"',
        "multipart/form-data; xboundary=a; boundary=b",
        "multipart/form-data;boundary=b;charset=utf-8",
        "multipart/form-data; boundary=a; boundary=b",
    ]
)


@given(
    KINDS, st.lists(PARTS, min_size=1, max_size=4), st.sampled_from(["--b--", "--b--\r\n", "--b--x", "--b"])
)
@settings(max_examples=300, deadline=None)
def test_no_parser_reads_another_model_than_the_one_that_was_checked(
    kind: str, parts: list[str], end: str
) -> None:
    form = ("".join(parts) + end).encode()
    try:
        read = form_body(form, kind)
    except Fault:
        return
    sent = b"".join(pieces_of(read.with_model(OWN)))
    expected = set() if read.model is None else {OWN}
    assert {model for _, model in models_in_form(sent, read.content_type)} <= expected


@given(KINDS, st.lists(PARTS, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_a_form_made_anew_is_as_long_as_it_was(kind: str, parts: list[str]) -> None:
    form = ("".join(parts) + "--b--\r\n").encode()
    try:
        read = form_body(form, kind)
    except Fault:
        return
    assert len(read.body) == len(form)


@pytest.mark.parametrize(
    "form",
    [
        b"--AaB03x\r\nContent-Disposition: form-data; name=model\r\n\r\nsay\r\n"
        b"--AaB03x\r\nContent-Disposition: form-data; name=file; filename=a.wav; filename*=utf-8''a.wav\r\n\r\n"
        b"RIFF\r\n",
        b'--AaB03x\r\nContent-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=utf-8\r\n'
        b"Content-Transfer-Encoding: 8bit\r\nContent-Length: 3\r\n\r\nsay\r\n" + FILE,
        b'--AaB03x\r\ncontent-disposition:form-data;name="model"\r\n\r\nsay\r\n'
        b'--AaB03x\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".wav"\r\n\r\nRIFF\r\n',
    ],
    ids=["dotnet", "java", "tight"],
)
async def test_the_forms_of_real_clients_are_taken(form: bytes, proxy: Proxy, server: Server) -> None:
    for key in ("limited", "free"):
        answer = await proxy.send(
            "POST", "/v1/audio/transcriptions", form + END, headers=form_headers(KIND, key)
        )
        assert answer.status == 200, answer.text
        asked = server.requests.pop()
        assert {model for _, model in models_in_form(asked.body, asked.headers["Content-Type"])} == {OWN}


async def test_a_second_model_behind_a_large_file_does_not_reach_the_upstream(
    proxy: Proxy, server: Server
) -> None:
    large = FILE.replace(b"RIFF", bytes(3 << 20))
    form = FIRST + large + part('; name="model"', OTHER) + END
    for key in ("limited", "free"):
        headers = form_headers(KIND, key)
        answer = await proxy.send(
            "POST", "/v1/audio/transcriptions", None, data=BytesIO(form), headers=headers
        )
        assert (answer.status, answer.error["param"]) == (400, "model")
    assert not server.requests


# --- JSON ---------------------------------------------------------------------------------------

JSONS: Final[dict[str, str]] = {
    "twice": '"model":"say","model":"embed"',
    "twice the other way": '"model":"embed","model":"say"',
    "an escaped name": '"model":"say","mod\\u0065l":"embed"',
    "in capitals": '"model":"say","Model":"embed"',
    "in capitals alone": '"MODEL":"embed"',
    "a NUL": '"model":"say","model\\u0000":"embed"',
    "a full-width letter": '"model":"say","\\uff4dodel":"embed"',
    "models": '"model":"say","models":["say","embed"]',
    "models alone": '"models":["embed"]',
    "fallbacks": '"model":"say","fallbacks":["embed"]',
    "fallbacks by model": '"model":"say","fallbacks":[{"say":["embed"]}]',
    "fallbacks as objects": '"model":"say","fallbacks":[{"model":"embed"}]',
    "extra_body": '"model":"say","extra_body":{"model":"embed"}',
    "extra_body in capitals": '"model":"say","extra_body":{"MODEL":"embed"}',
    "extra_body twice": '"model":"say","extra_body":{"x":{"model":"say","model":"embed"}}',
    "a nested provider": '"model":"say","provider":{"order":[{"model":"embed"}]}',
    "a plug-in": '"model":"say","plugins":[{"id":"auto","allowed_models":["embed"]}]',
    "a route": '"model":"say","route":{"model":"embed"}',
    "a draft": '"model":"say","draft_model":"embed"',
    "a byte order mark": "\ufeff",
    "another model": '"model":"embed"',
    "an unknown model": '"model":"of-nobody"',
}


def json_of(name: str, more: str) -> bytes:
    inner = JSONS[name]
    mark, inner = (inner, '"model":"say"') if inner == "\ufeff" else ("", inner)
    return f"{mark}{{{inner},{more}}}".encode()


@pytest.mark.parametrize("path", [*PASSED_PATHS, "/api/embed", "/chat/completions"])
@pytest.mark.parametrize("name", JSONS)
async def test_a_body_of_a_limited_key_reaches_its_own_model_alone(
    name: str, path: str, proxy: Proxy, server: Server
) -> None:
    more = '"input":"x","messages":[{"role":"user","content":"Hi."}],"prompt":"x"'
    url = path if path.startswith("/api") else f"/v1{path}"
    answer = await proxy.send("POST", url, json_of(name, more), headers=key_header("limited"))
    assert answer.status in ((200, 400, 403, 404) if path == "/api/embed" else (400, 403, 404)), answer.text
    for asked in server.requests:
        assert {model for _, model in models_in_json(asked.body)} == {OWN}


async def test_names_of_a_limited_keys_own_model_pass_and_all_names_of_other_keys(
    proxy: Proxy, server: Server
) -> None:
    own = {
        "model": OWN,
        "input": "x",
        "models": [OWN],
        "fallbacks": [{"model": OWN}],
        "provider": {"only": ["a"]},
    }
    assert (await proxy.send("POST", "/v1/embeddings", own, headers=key_header("limited"))).status == 200
    other = {
        "model": OWN,
        "input": "x",
        "models": [OTHER],
        "fallbacks": [OTHER],
        "extra_body": {"model": OTHER},
    }
    assert (await proxy.send("POST", "/v1/embeddings", other, headers=key_header("free"))).status == 200
    assert [json.loads(asked.body) for asked in server.requests] == [own, other]


async def test_a_body_goes_on_as_json_whatever_its_type_says(proxy: Proxy, server: Server) -> None:
    headers = {**key_header("limited"), "Content-Type": "application/json; charset=utf-7"}
    body = b'{"model":"say","input":"+AG0-odel"}'
    assert (await proxy.send("POST", "/v1/embeddings", body, headers=headers)).status == 200
    assert server.requests[0].headers["Content-Type"] == "application/json"


async def test_a_limited_key_reaches_no_unlisted_model_of_an_upstream_that_names_the_path(
    server: Server, tmp_path: Path
) -> None:
    write_keys(tmp_path, limited={"models": [OWN]}, free={})
    async with proxy_before(server.url, tmp_path, table={"paths": ["/embeddings"], "models": [OWN]}) as proxy:
        body = {"model": OTHER, "input": "x"}
        assert (await proxy.send("POST", "/v1/embeddings", body, headers=key_header("free"))).status == 200
        assert (await proxy.send("POST", "/v1/embeddings", body, headers=key_header("limited"))).status == 403


# --- chats --------------------------------------------------------------------------------------


@pytest.fixture
async def chats() -> AsyncIterator[Upstream]:
    async with upstream() as made:
        yield made


@pytest.mark.parametrize("tools", [False, True], ids=["passed on", "converted"])
async def test_a_chat_names_no_other_model(tools: bool, chats: Upstream, tmp_path: Path) -> None:
    write_keys(tmp_path, limited={"models": ["small"]}, free={})
    more: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]} if tools else {}
    body = {"model": "small", "messages": [{"role": "user", "content": "The model is: model"}], **more}
    async with proxy_before(chats.url, tmp_path) as proxy:
        for field in ({"models": ["large"]}, {"fallbacks": ["large"]}, {"extra_body": {"model": "large"}}):
            refused = await proxy.ask({**body, **field}, headers=key_header("limited"))
            assert (refused.status, next(iter(field)) in refused.error["param"]) == (403, True)
            assert (await proxy.ask({**body, **field}, headers=key_header("free"))).status == 200
        assert len(chats.requests) == 3
        assert (await proxy.ask({**body, "models": ["small"]}, headers=key_header("limited"))).status == 200
        for name in ("Messages", "Stream", "Reasoning_Effort"):
            refused = await proxy.ask({**body, name: "x"}, headers=key_header("free"))
            assert (refused.status, refused.error["param"]) == (400, name)
