"""Which URLs the servers of requests may have."""

from __future__ import annotations

import pytest

from codex_proxy.parts.mcp.config import SETTING, AllowedUrls


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("https://example.com/mcp", "https://example.com/mcp"),
        ("https://example.com/mcp", "https://example.com/mcp/"),
        ("https://example.com/mcp", "https://example.com/mcp/deep?key=1"),
        ("https://example.com/mcp", "https://EXAMPLE.com:443/mcp?key=1"),
        ("https://example.com", "https://example.com/anything"),
        ("http://localhost:8080/mcp", "http://localhost:8080/mcp"),
        ("http://[::1]:8080/", "http://[0:0:0:0:0:0:0:1]:8080/mcp"),
    ],
)
def test_an_entry_permits_itself_and_what_is_below_it(entry: str, url: str) -> None:
    assert AllowedUrls((entry,)).permits(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/mcpx",
        "https://example.com/other",
        "https://example.com/",
        "http://example.com/mcp",
        "https://example.com:8443/mcp",
        "https://example.com.evil.org/mcp",
        "https://evil.org/https://example.com/mcp",
        "https://example.com@evil.org/mcp",
        "https://user@example.com/mcp",
        "https://example.com/mcp/../admin",
        "https://example.com/mcp/%2e%2e/admin",
        "https://example.com/mcp/..%2fadmin",
        "https://example.com/mcp\\..\\admin",
        "https://example.com\\@evil.org/mcp",
        "https://example.com/mcp\r\nHost: evil.org",
        "https://example.com:port/mcp",
        "ftp://example.com/mcp",
        "//example.com/mcp",
        "",
    ],
)
def test_a_url_that_is_not_below_an_allowed_one_is_not_permitted(url: str) -> None:
    assert not AllowedUrls(("https://example.com/mcp",)).permits(url)


def test_an_empty_list_permits_nothing() -> None:
    assert not AllowedUrls(()).permits("https://example.com/")


@pytest.mark.parametrize(
    "entry",
    [
        "example.com",
        "ftp://example.com",
        "https://u:p@example.com",
        "https://example.com/?a=1",
        "https://",
        "*",
    ],
)
def test_an_entry_that_is_no_address_is_refused_with_the_name_of_the_setting(entry: str) -> None:
    with pytest.raises(ValueError, match=SETTING):
        AllowedUrls((entry,))
