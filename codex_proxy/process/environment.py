"""Which environment variables a child gets.

Decides by name, from an allow-list: what the agent needs to run, to reach its provider and to be configured. Of
values it looks only at whether the address of a network proxy has a password in it. It does not read the
environment of this process.
"""

import re
from collections.abc import Iterable, Mapping

# The proxy's own settings hold the keys of its clients: no child ever sees one, whoever asks. They are read
# without regard to case, so they are kept back the same way.
FORBIDDEN_PREFIX = "PROXY_"

ALLOWED_NAMES = frozenset(
    {
        # to find programs, files and the user
        *("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM", "LANG"),
        # to trust who the user's machine trusts
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        # to get out of the user's network
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        # the deterministic agent waits for this file
        "STREAM_RELEASE_FILE",
    }
)

ALLOWED_PREFIXES = ("LC_", "CODEX_", "FAKE_CODEX_")

PROXY_NAMES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})
SECRET_WORDS = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""What the names of Codex's own secrets have in them: CODEX_API_KEY, CODEX_ACCESS_TOKEN and those to come."""


def child_environment(
    source: Mapping[str, str],
    *,
    extra: Iterable[str] = (),
    env_keys: Iterable[str] = (),
    credentials: bool = False,
) -> dict[str, str]:
    """The part of `source` that a child may see.

    `extra` are further names the user allows (PROXY_CHILD_ENV), `env_keys` the names under which the agent's
    configuration expects the keys of its providers. `credentials`: whether the child is the agent itself, which
    signs in and reaches its provider with them; any other child gets those only that `extra` names. Names that are
    not set are not an error; PROXY_* is never passed on.
    """
    named = frozenset((*extra, *env_keys))
    return {
        name: value
        for name, value in source.items()
        if (name in named or _is_allowed(name, value, credentials=credentials))
        and not name.upper().startswith(FORBIDDEN_PREFIX)
    }


def credential_names(environment: Mapping[str, str], *, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """The names in an agent's environment that its shells must not see, but for those that the user allows."""
    allowed = frozenset(extra)
    return tuple(
        name for name, value in environment.items() if name not in allowed and _is_credential(name, value)
    )


def _is_allowed(name: str, value: str, *, credentials: bool) -> bool:
    if name not in ALLOWED_NAMES and not name.startswith(ALLOWED_PREFIXES):
        return False
    return credentials or not _is_credential(name, value)


def _is_credential(name: str, value: str) -> bool:
    """Whether a variable holds a secret of Codex's, or an address of a network proxy with a password in it."""
    if name.upper() in PROXY_NAMES:
        return "@" in value
    return name.startswith("CODEX_") and SECRET_WORDS.search(name) is not None
