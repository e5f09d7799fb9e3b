"""Images by address: what is fetched, from whom, and what is never reached."""

from __future__ import annotations

import asyncio
import base64
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import BaseTestServer, TestServer

from codex_proxy.admission.images import SETTING, ImageFetcher, ImageLimits, inline_images
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.core.safety import is_public
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.requests.files import IMAGE_LEFT_OUT
from tests.pictures import PICTURES, PNG
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("error")

IMAGES = PICTURES
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def data_url(image: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


class Host:
    """A server on loopback, and its requests."""

    def __init__(self, server: BaseTestServer, requests: list[web.Request]) -> None:
        self.requests = requests
        self.port = server.port
        self.address = f"127.0.0.1:{server.port}"
        self.entry = f"http://{self.address}"

    def url(self, path: str = "/a.png") -> str:
        return self.entry + path


Serve = Callable[[Handler], Awaitable[Host]]
Fetch = Callable[..., ImageFetcher]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(handler: Handler) -> Host:
            requests: list[web.Request] = []

            async def note_request(request: web.Request) -> web.StreamResponse:
                requests.append(request)
                return await handler(request)

            app = web.Application()
            app.router.add_route("*", "/{path:.*}", note_request)
            server = await stack.enter_async_context(TestServer(app, host="127.0.0.1"))
            return Host(server, requests)

        yield start


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetch]:
    """Makes fetchers; all are closed at the end."""
    made: list[ImageFetcher] = []

    def make(
        *allowed: str, limits: ImageLimits | None = None, resolver: AbstractResolver | None = None
    ) -> ImageFetcher:
        made.append(ImageFetcher(allowed, limits, resolver))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def png(_: web.Request) -> web.StreamResponse:
    return web.Response(body=PNG, content_type="image/png")


def to(place: str) -> Handler:
    async def redirect(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": place})

    return redirect


async def refusal(fetching: Awaitable[object]) -> str:
    """What the client is told."""
    with pytest.raises(Fault) as caught:
        await fetching
    failure = caught.value.failure
    assert failure.kind == FaultKind.INVALID_REQUEST
    assert failure.param == "messages"
    assert failure.code == "invalid_image_url"
    return failure.message


# --- what is fetched -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", IMAGES)
async def test_an_image_of_an_allowed_host_comes_as_a_data_url(
    serve: Serve, fetcher: Fetch, kind: str
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=IMAGES[kind], content_type=kind)

    host = await serve(answer)
    assert await fetcher(host.entry).fetch(host.url()) == data_url(IMAGES[kind], kind)


async def test_the_host_learns_nothing_of_the_client(
    serve: Serve, fetcher: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = await png(request)
        response.set_cookie("who", "me")
        return response

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    host = await serve(answer)
    images = fetcher(host.entry)
    await images.fetch(host.url("/a.png?x=1#place"))
    await images.fetch(host.url("/b.png"))
    assert [request.path_qs for request in host.requests] == ["/a.png?x=1", "/b.png"]
    for request in host.requests:
        assert set(request.headers) == {"Host", "Accept", "Accept-Encoding", "User-Agent", "Connection"}
        assert request.headers["User-Agent"] == "codex-proxy"


async def test_a_redirect_to_an_allowed_place_is_followed(serve: Serve, fetcher: Fetch) -> None:
    target = await serve(png)
    host = await serve(to(target.url("/b.png")))
    assert await fetcher(host.entry, target.entry).fetch(host.url()) == data_url(PNG)


async def test_a_relative_redirect_is_followed(serve: Serve, fetcher: Fetch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (png if request.path == "/b/c.png" else to("../b/c.png"))(request)

    host = await serve(answer)
    assert await fetcher(host.entry).fetch(host.url("/a/a.png")) == data_url(PNG)


# --- who is never asked --------------------------------------------------------------------------


async def test_a_host_that_is_not_allowed_is_not_asked_and_the_setting_is_named(
    serve: Serve, fetcher: Fetch
) -> None:
    host = await serve(png)
    said = await refusal(fetcher("example.com").fetch(host.url("/secret?token=1")))
    assert host.address in said
    assert SETTING in said
    assert "secret" not in said
    assert "token" not in said
    assert host.requests == []


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        ("example.com", "http://example.com/a.png"),
        ("example.com", "https://example.com:8443/a.png"),
        ("example.com:8443", "https://example.com/a.png"),
        ("example.com", "https://www.example.com/a.png"),
        ("example.com", "https://example.com.evil.test/a.png"),
        ("example.com", "https://notexample.com/a.png"),
        ("example.com", "https://evil.test/example.com"),
        ("example.com", "https://evil.test\\@example.com/"),
        ("*.example.com", "https://example.com/a.png"),
        ("*.example.com", "https://evilexample.com/a.png"),
        ("http://example.com", "https://example.com/a.png"),
        ("10.0.0.5:8443", "https://10.0.0.5/a.png"),
        ("10.0.0.5", "https://10.0.0.50/a.png"),
        ("127.0.0.1", "https://2130706433/a.png"),
        ("127.0.0.1", "https://127.1/a.png"),
        ("127.0.0.1", "https://[::ffff:127.0.0.1]/a.png"),
        ("127.0.0.1", "https://localhost/a.png"),
        ("*.1", "https://127.0.0.1/a.png"),
    ],
)
async def test_what_only_resembles_an_entry_is_not_allowed(fetcher: Fetch, allowed: str, url: str) -> None:
    resolver = Names({})
    try:
        images = fetcher(allowed, resolver=resolver)
    except ValueError:
        return
    await refusal(images.fetch(url))
    assert resolver.requests == []


@pytest.mark.parametrize("url", ["https://me@{}/a", "https://me:secret@{}/a", "http://:secret@{}/a"])
async def test_a_url_with_credentials_is_refused(serve: Serve, fetcher: Fetch, url: str) -> None:
    host = await serve(png)
    said = await refusal(fetcher(host.entry, host.address).fetch(url.format(host.address)))
    assert "user name or password" in said
    assert "secret" not in said
    assert host.requests == []


@pytest.mark.parametrize(
    "url",
    ["https://", "https:///a.png", "https://x:99999/", "https://x:0/", "https://[::1/", "ftp://x/", "x"],
)
async def test_an_image_url_that_is_no_web_address_is_refused(fetcher: Fetch, url: str) -> None:
    assert await refusal(fetcher("x").fetch(url)) == "An image URL is not a valid https URL."


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "*",
        "example.com/x",
        "example.com/",
        "me@example.com",
        "ftp://x",
        "*.*.com",
        "*.10.0.0.1",
        "x:99999",
        "::1",
    ],
)
def test_an_entry_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=SETTING):
        ImageFetcher((entry,))


async def test_a_redirect_to_a_host_that_is_not_allowed_is_not_followed(serve: Serve, fetcher: Fetch) -> None:
    forbidden = await serve(png)
    host = await serve(to(forbidden.url("/inner?token=1")))
    said = await refusal(fetcher(host.entry).fetch(host.url()))
    assert SETTING in said
    assert "token" not in said
    assert forbidden.requests == []
    assert len(host.requests) == 1


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "data:image/png;base64,AAAA", "", "/a.png", "http://[::1/"]
)
async def test_a_redirect_to_nowhere_is_refused(serve: Serve, fetcher: Fetch, place: str) -> None:
    host = await serve(to(place))
    assert "redirected to a URL that is not valid" in await refusal(fetcher(host.entry).fetch(host.url()))


async def test_a_redirect_with_credentials_is_not_followed(serve: Serve, fetcher: Fetch) -> None:
    target = await serve(png)
    host = await serve(to(f"http://me:secret@{target.address}/"))
    assert "user name or password" in await refusal(fetcher(host.entry, target.entry).fetch(host.url()))
    assert target.requests == []


@pytest.mark.parametrize(("times", "fetched"), [(3, True), (4, False)])
async def test_at_most_three_redirects_are_followed(
    serve: Serve, fetcher: Fetch, times: int, fetched: bool
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        left = int(request.path[1:])
        return await (to(f"/{left - 1}") if left else png)(request)

    host = await serve(answer)
    fetching = fetcher(host.entry).fetch(host.url(f"/{times}"))
    if fetched:
        assert await fetching == data_url(PNG)
    else:
        assert "redirected more than 3 times" in await refusal(fetching)
        assert len(host.requests) == 4


# --- names and addresses -------------------------------------------------------------------------


class Names(AbstractResolver):
    """Names as a test wants them to resolve."""

    def __init__(self, known: dict[str, list[str]]) -> None:
        self._known = known
        self.requests: list[str] = []
        self.closed = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.requests.append(host)
        if host not in self._known:
            raise OSError(f"no {host}")
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in self._known[host]
        ]

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"], ["169.254.169.254"]])
async def test_a_name_that_resolves_into_a_private_network_is_not_asked(
    serve: Serve, fetcher: Fetch, addresses: list[str]
) -> None:
    host = await serve(png)
    images = fetcher(f"http://images.test:{host.port}", resolver=Names({"images.test": addresses}))
    said = await refusal(images.fetch(f"http://images.test:{host.port}/a.png"))
    assert (
        said == "The image on 'images.test' could not be fetched: its host has an address that is not public."
    )
    assert host.requests == []


async def test_an_entry_for_an_address_does_not_open_it_to_names(serve: Serve, fetcher: Fetch) -> None:
    host = await serve(png)
    names = Names({"images.test": ["127.0.0.1"]})
    images = fetcher(host.entry, f"http://images.test:{host.port}", resolver=names)
    assert "not public" in await refusal(images.fetch(f"http://images.test:{host.port}/a.png"))
    assert await images.fetch(host.url()) == data_url(PNG)


async def test_a_name_is_resolved_anew_for_every_connection(fetcher: Fetch) -> None:
    names = Names({"images.test": ["127.0.0.1"]})
    images = fetcher("images.test", resolver=names)
    for _ in range(2):
        await refusal(images.fetch("https://images.test/a.png"))
    assert names.requests == ["images.test", "images.test"]


async def test_a_redirect_to_an_allowed_name_that_leads_inside_is_not_followed(
    serve: Serve, fetcher: Fetch
) -> None:
    inner = await serve(png)
    host = await serve(to(f"http://images.test:{inner.port}/"))
    names = Names({"images.test": ["127.0.0.1"]})
    images = fetcher(host.entry, f"http://images.test:{inner.port}", resolver=names)
    assert "not public" in await refusal(images.fetch(host.url()))
    assert inner.requests == []


@pytest.mark.parametrize(
    "url", ["https://a.example.com/x", "https://A.B.Example.COM/x", "https://example.com:443/x"]
)
async def test_a_name_is_matched_in_any_case_and_below_a_star(fetcher: Fetch, url: str) -> None:
    images = fetcher("*.example.com", "EXAMPLE.com", resolver=Names({}))
    assert "could not be fetched" in await refusal(images.fetch(url))


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.255.0.1",
            "10.1.1.1",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
        ),
        *("0.0.0.0", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
        *("2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "localhost", ""),
    ],
)
def test_any_other_address_is_not_public(address: str) -> None:
    assert not is_public(address)


# --- limits --------------------------------------------------------------------------------------

SMALL = ImageLimits(image_bytes=1000)


async def test_an_image_of_the_largest_size_is_taken(serve: Serve, fetcher: Fetch) -> None:
    image = PNG + b"\0" * (1000 - len(PNG))

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=image, content_type="image/png")

    host = await serve(answer)
    assert await fetcher(host.entry, limits=SMALL).fetch(host.url()) == data_url(image)


async def test_an_image_that_says_it_is_too_large_is_refused(serve: Serve, fetcher: Fetch) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=PNG * 100, content_type="image/png")

    host = await serve(answer)
    assert "is larger than" in await refusal(fetcher(host.entry, limits=SMALL).fetch(host.url()))


async def test_an_image_that_says_it_is_too_large_is_not_waited_for(serve: Serve, fetcher: Fetch) -> None:
    never = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "image/png", "Content-Length": "1001"})
        await response.prepare(request)
        await never.wait()
        return response

    host = await serve(answer)
    said = await refusal(fetcher(host.entry, limits=SMALL).fetch(host.url()))
    assert "is larger than" in said
    never.set()


async def test_a_body_without_end_is_left_as_soon_as_it_is_too_large(serve: Serve, fetcher: Fetch) -> None:
    left = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        await response.prepare(request)
        try:
            while True:
                await response.write(PNG * 1000)
        finally:
            left.set()

    host = await serve(flood)
    images = fetcher(host.entry, limits=ImageLimits(image_bytes=100_000))
    assert "is larger than" in await refusal(images.fetch(host.url()))
    async with asyncio.timeout(PATIENCE):
        await left.wait()


@pytest.mark.parametrize("begin", [True, False])
async def test_a_host_that_answers_slowly_or_not_at_all_is_left_when_the_time_is_up(
    serve: Serve, fetcher: Fetch, begin: bool
) -> None:
    never = asyncio.Event()

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        if begin:
            await response.prepare(request)
            await response.write(PNG)
        await never.wait()
        return response

    host = await serve(drip)
    images = fetcher(host.entry, limits=ImageLimits(seconds=0.1))
    assert "was not received within 0.1 s" in await refusal(images.fetch(host.url()))
    never.set()


@pytest.mark.parametrize("kind", ["text/html", "image/jpeg", "application/octet-stream", "image/bmp"])
async def test_the_type_is_that_of_the_bytes_whatever_the_host_declares(
    serve: Serve, fetcher: Fetch, kind: str
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=PNG, content_type=kind)

    host = await serve(answer)
    assert await fetcher(host.entry).fetch(host.url()) == data_url(PNG)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "is empty"),
        (b"<svg/>", "is not a PNG, JPEG, WebP or GIF"),
        (b"{}", "is not a PNG"),
        (PNG[:7], "is not a PNG"),
        (b" " + PNG, "is not a PNG"),
        (PNG[:-1], "is damaged"),
        (IMAGES["image/jpeg"][:-2], "is damaged"),
    ],
)
async def test_a_body_that_is_no_image_is_refused(
    serve: Serve, fetcher: Fetch, body: bytes, why: str
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="image/png")

    host = await serve(answer)
    assert f"The image on '127.0.0.1' {why}" in await refusal(fetcher(host.entry).fetch(host.url()))


async def test_the_field_that_names_an_image_is_named_by_its_fault(serve: Serve, fetcher: Fetch) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=PNG if request.path == "/good" else PNG[:-1])

    host = await serve(answer)
    places = {
        host.url("/good"): "input[0].content[1].image_url",
        host.url("/bad"): "input[3].output[0].image_url",
    }
    for images in (fetcher(host.entry), None):
        urls = (host.url("/good"), host.url("/bad")) if images else (host.url("/bad"),)
        with pytest.raises(Fault) as caught:
            await inline_images(turn(message_with_images(*urls)), images, places, "input")
        assert caught.value.failure.param == "input[3].output[0].image_url"


async def test_a_packed_body_is_not_unpacked(serve: Serve, fetcher: Fetch) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        response = web.Response(body=PNG * 1000, content_type="image/png")
        response.enable_compression(web.ContentCoding.gzip)
        return response

    host = await serve(answer)
    assert "is not a PNG" in await refusal(fetcher(host.entry).fetch(host.url()))


@pytest.mark.parametrize("status", [204, 206, 304, 401, 404, 500])
async def test_the_refusal_names_a_status_that_is_not_200(serve: Serve, fetcher: Fetch, status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    host = await serve(answer)
    said = await refusal(fetcher(host.entry).fetch(host.url("/secret")))
    assert said == f"The image on '127.0.0.1' could not be fetched (status {status})."


async def test_a_host_that_is_not_there_is_reported_by_name_alone(fetcher: Fetch) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = await refusal(fetcher(place).fetch(place + "/secret?token=1"))
    assert said == "The image on '127.0.0.1' could not be fetched."


# --- open and closed -----------------------------------------------------------------------------


async def test_nothing_is_opened_before_it_is_needed() -> None:
    names = Names({})
    images = ImageFetcher(("example.com",), resolver=names)
    await images.close()
    await images.close()
    assert names.closed


async def test_connections_of_the_fetcher_are_closed(serve: Serve) -> None:
    host = await serve(png)
    names = Names({})
    images = ImageFetcher((host.entry,), resolver=names)
    await images.fetch(host.url())
    await images.close()
    gc.collect()
    assert names.closed


async def test_after_its_end_nothing_is_fetched(serve: Serve) -> None:
    host = await serve(png)
    images = ImageFetcher((host.entry,))
    await images.close()
    with pytest.raises(Fault) as caught:
        await images.fetch(host.url())
    assert caught.value.failure.kind == FaultKind.STOPPING
    assert host.requests == []


# --- a turn --------------------------------------------------------------------------------------


def turn(*history: HistoryItem) -> Turn:
    return Turn(model="m", history=history)


def message_with_images(*urls: str) -> HistoryMessage:
    return HistoryMessage("user", (TextPart("Look:"), *(ImagePart(url, "high") for url in urls)))


async def test_images_of_messages_and_outputs_are_replaced_in_place(serve: Serve, fetcher: Fetch) -> None:
    host = await serve(png)
    call, raw = HistoryCall("c", "look", "{}"), RawHistoryItem(b'{"type":"reasoning"}')
    kept = ImagePart(data_url(IMAGES["image/gif"], "image/gif"))
    asked = turn(
        message_with_images(host.url("/a")),
        raw,
        call,
        HistoryOutput("c", (kept, ImagePart(host.url("/b")), TextPart("https://example.com/is-text"))),
    )
    assert await inline_images(asked, fetcher(host.entry)) == turn(
        HistoryMessage("user", (TextPart("Look:"), ImagePart(data_url(PNG), "high"))),
        raw,
        call,
        HistoryOutput("c", (kept, ImagePart(data_url(PNG)), TextPart("https://example.com/is-text"))),
    )


async def test_a_turn_without_addresses_stays_as_it_is() -> None:
    asked = turn(message_with_images(data_url(PNG)), HistoryCall("c", "look", "{}"))
    assert await inline_images(asked, None) is asked


async def test_without_a_fetcher_an_address_is_refused_and_the_setting_named() -> None:
    said = await refusal(inline_images(turn(message_with_images("HTTPS://example.com/secret")), None))
    assert "'example.com'" in said
    assert SETTING in said
    assert "secret" not in said


async def test_an_image_that_is_shown_twice_is_fetched_once(serve: Serve, fetcher: Fetch) -> None:
    host = await serve(png)
    both = await inline_images(
        turn(message_with_images(host.url()), message_with_images(host.url())), fetcher(host.entry)
    )
    assert both.history[0] == both.history[1] == message_with_images(data_url(PNG))
    assert len(host.requests) == 1


class Gate(ImageFetcher):
    """Notes what is fetched at the same time, and gives nothing before it is opened."""

    def __init__(self) -> None:
        super().__init__(())
        self.inside: set[str] = set()
        self.most = 0
        self.opened = asyncio.Event()

    async def fetch(self, url: str) -> str:
        self.inside.add(url)
        self.most = max(self.most, len(self.inside))
        await self.opened.wait()
        self.inside.discard(url)
        return data_url(PNG)


async def test_at_most_four_images_of_a_request_are_fetched_at_once() -> None:
    gate = Gate()
    asking = asyncio.create_task(
        inline_images(turn(message_with_images(*(f"https://x/{n}" for n in range(12)))), gate)
    )
    for _ in range(12):  # each has its chance to begin
        await asyncio.sleep(0)
    assert gate.inside == {f"https://x/{n}" for n in range(4)}
    gate.opened.set()
    await asking
    assert gate.most == 4


@pytest.mark.parametrize(("count", "taken"), [(20, True), (21, False)])
async def test_a_request_may_name_twenty_images(
    serve: Serve, fetcher: Fetch, count: int, taken: bool
) -> None:
    host = await serve(png)
    asking = inline_images(
        turn(*(message_with_images(host.url(f"/{n}")) for n in range(count))), fetcher(host.entry)
    )
    if taken:
        await asking
    else:
        assert "at most 20 images" in await refusal(asking)
    assert len(host.requests) == (count if taken else 0)


async def test_images_that_are_too_large_together_are_refused(serve: Serve, fetcher: Fetch) -> None:
    host = await serve(png)
    images = fetcher(host.entry, limits=ImageLimits(request_bytes=2 * len(PNG) + 50))
    two = turn(message_with_images(host.url("/a"), host.url("/b")))
    assert len((await inline_images(two, images)).history) == 1
    three = turn(message_with_images(host.url("/a"), host.url("/b"), host.url("/c")))
    assert "in total" in await refusal(inline_images(three, images))


async def test_an_image_counts_as_often_as_it_is_sent(serve: Serve, fetcher: Fetch) -> None:
    host = await serve(png)
    images = fetcher(host.entry, limits=ImageLimits(request_bytes=2 * len(PNG) + 50))
    assert "in total" in await refusal(inline_images(turn(message_with_images(*[host.url()] * 3)), images))
    assert len(host.requests) == 1


async def test_the_first_image_that_fails_ends_the_others(serve: Serve, fetcher: Fetch) -> None:
    waits = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/bad":
            await waits.wait()
            return web.Response(status=404)
        waits.set()
        await asyncio.Event().wait()
        return web.Response()

    host = await serve(answer)
    said = await refusal(
        inline_images(turn(message_with_images(host.url("/slow"), host.url("/bad"))), fetcher(host.entry))
    )
    assert "status 404" in said


async def test_an_optional_image_that_cannot_be_fetched_is_a_note_beside_the_others(
    serve: Serve, fetcher: Fetch
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404) if request.path == "/bad" else await png(request)

    host = await serve(answer)
    asked, bad = turn(message_with_images(host.url("/good"), host.url("/bad"))), {host.url("/bad")}
    (shown,) = (await inline_images(asked, fetcher(host.entry), optional=bad)).history
    look, note = TextPart("Look:"), TextPart(IMAGE_LEFT_OUT)
    assert shown == HistoryMessage("user", (look, ImagePart(data_url(PNG), "high"), note))
    (without_fetcher,) = (await inline_images(turn(message_with_images(*bad)), None, optional=bad)).history
    assert without_fetcher == HistoryMessage("user", (look, note))


async def test_a_client_that_leaves_ends_the_fetching(serve: Serve, fetcher: Fetch) -> None:
    reached = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        reached.set()
        await asyncio.Event().wait()
        return web.Response()

    host = await serve(answer)
    asking = asyncio.create_task(inline_images(turn(message_with_images(host.url())), fetcher(host.entry)))
    await reached.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
