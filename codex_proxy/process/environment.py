"""Chooses which environment variables a child gets, by an allow-list of names.

What an agent needs to run, to reach its provider and to be configured is allowed. Values are looked at only to see
whether the URL of a network proxy has a password. The functions do not read this process's environment themselves.
"""

import re
from collections.abc import Iterable, Mapping

# The proxy's own settings hold its clients' keys: no child may ever see one. Their case does not matter when they are
# read, so it does not matter here either.
FORBIDDEN_PREFIX = "PROXY_"

ALLOWED_NAMES = frozenset(
    {
        # to find programs, files and the user
        *("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM", "LANG"),
        # to trust the certificates that the user's machine trusts
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        # to reach the internet through the user's network proxy
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        # the fake agent of the tests waits for this file
        "STREAM_RELEASE_FILE",
    }
)

ALLOWED_PREFIXES = ("LC_", "CODEX_", "FAKE_CODEX_")

PROXY_NAMES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})
SECRET_WORDS = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Words in the names of Codex's secrets: CODEX_API_KEY, CODEX_ACCESS_TOKEN, and any to come."""


def child_environment(
    source: Mapping[str, str],
    *,
    extra: Iterable[str] = (),
    env_keys: Iterable[str] = (),
    credentials: bool = False,
) -> dict[str, str]:
    """Returns the variables of `source` that a child may see.

    `extra` are further names that the user allows (PROXY_CHILD_ENV), `env_keys` the names of the variables with the
    keys of the providers in the agent's configuration. `credentials` is True for the agent itself, which signs in
    with them; other children get only those named in `extra`. Names that are not set are ignored. PROXY_* is never
    passed on.
    """
    named = frozenset((*extra, *env_keys))
    return {
        name: value
        for name, value in source.items()
        if (name in named or _is_allowed(name, value, credentials=credentials))
        and not name.upper().startswith(FORBIDDEN_PREFIX)
    }


def credential_names(environment: Mapping[str, str], *, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the names of the credentials in `environment`, except those that the user allows by `extra`.

    The agent hides them from its shells.
    """
    allowed = frozenset(extra)
    return tuple(
        name for name, value in environment.items() if name not in allowed and _is_credential(name, value)
    )


def _is_allowed(name: str, value: str, *, credentials: bool) -> bool:
    """Returns whether the allow-list has the name; a credential is allowed only with `credentials`."""
    if name not in ALLOWED_NAMES and not name.startswith(ALLOWED_PREFIXES):
        return False
    return credentials or not _is_credential(name, value)


def _is_credential(name: str, value: str) -> bool:
    """Returns whether a variable holds a secret of Codex's, or the URL of a network proxy with a password."""
    if name.upper() in PROXY_NAMES:
        return "@" in value
    return name.startswith("CODEX_") and SECRET_WORDS.search(name) is not None
