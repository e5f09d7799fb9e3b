"""Which environment variables a child gets.

Decides by name alone, from an allow-list: what the agent needs to run, to reach its provider and to be
configured. It does not read the environment of this process, and does not know what a value means.
"""

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


def child_environment(
    source: Mapping[str, str], *, extra: Iterable[str] = (), env_keys: Iterable[str] = ()
) -> dict[str, str]:
    """The part of `source` that a child may see.

    `extra` are further names the user allows (PROXY_CHILD_ENV), `env_keys` the names under which the agent's
    configuration expects the keys of its providers. Names that are not set are not an error; PROXY_* is never
    passed on.
    """
    names = ALLOWED_NAMES.union(extra, env_keys)
    return {
        name: value
        for name, value in source.items()
        if (name in names or name.startswith(ALLOWED_PREFIXES))
        and not name.upper().startswith(FORBIDDEN_PREFIX)
    }
