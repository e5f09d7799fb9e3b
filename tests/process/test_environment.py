"""Which environment variables a child gets."""

from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.process.launch import child_environment, credential_names


def test_a_child_gets_what_it_needs_to_run_and_to_reach_its_provider() -> None:
    names = """
        PATH HOME LANG LC_ALL LC_CTYPE TMPDIR USER LOGNAME SHELL TERM SSL_CERT_FILE SSL_CERT_DIR
        NODE_EXTRA_CA_CERTS HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy
        all_proxy CODEX_HOME CODEX_CA_CERTIFICATE FAKE_CODEX_MODE STREAM_RELEASE_FILE
    """
    needed = dict.fromkeys(names.split(), "x")
    assert child_environment(needed) == needed


def test_a_child_gets_nothing_that_is_not_named() -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "OPENAI_API_KEY": "k",
        "LD_PRELOAD": "x",
        "XCODEX_HOME": "x",
        "path": "x",
    }
    assert child_environment(secrets) == {}


def test_a_name_that_is_given_is_passed_on_and_one_that_is_not_set_is_no_error() -> None:
    source = {"OPENAI_API_KEY": "k", "MY_TOOL": "t", "OTHER": "o"}
    assert child_environment(source, extra=["MY_TOOL"], env_keys=["OPENAI_API_KEY", "UNSET"]) == {
        "OPENAI_API_KEY": "k",
        "MY_TOOL": "t",
    }


def test_the_settings_of_the_proxy_never_reach_a_child_even_when_named() -> None:
    source = {"PROXY_API_KEYS": "secret", "proxy_api_keys": "secret", "PROXY_CHILD_ENV": "PROXY_API_KEYS"}
    assert child_environment(source, extra=source, env_keys=source) == {}


SIGN_IN = {
    "CODEX_API_KEY": "k",
    "CODEX_ACCESS_TOKEN": "t",
    "CODEX_GITHUB_PERSONAL_ACCESS_TOKEN": "g",
    "HTTPS_PROXY": "http://user:password@proxy:3128",
    "all_proxy": "socks5h://token@proxy",
}


def test_only_the_agent_itself_gets_what_it_signs_in_with() -> None:
    harmless = {"CODEX_HOME": "/home", "HTTP_PROXY": "http://proxy:3128"}
    assert child_environment(harmless | SIGN_IN) == harmless
    assert child_environment(harmless | SIGN_IN, credentials=True) == harmless | SIGN_IN


def test_what_the_agent_signs_in_with_is_hidden_from_its_shells_unless_the_user_names_it() -> None:
    environment = {"CODEX_HOME": "/home", "HTTP_PROXY": "http://proxy:3128", "PATH": "/a@b", **SIGN_IN}
    assert set(credential_names(environment)) == set(SIGN_IN)
    assert set(credential_names(environment, extra=["HTTPS_PROXY"])) == set(SIGN_IN) - {"HTTPS_PROXY"}
    assert child_environment(environment, extra=["HTTPS_PROXY"])["HTTPS_PROXY"] == SIGN_IN["HTTPS_PROXY"]


NAMES = st.one_of(
    st.sampled_from(
        ["CODEX_API_KEY", "PROXY_API_KEY", "Proxy_Host", "PATH", "CODEX_HOME", "HTTP_PROXY", "LC_ALL"]
    ),
    st.text(max_size=12),
)


@given(st.dictionaries(NAMES, st.text(max_size=3)), st.lists(NAMES), st.lists(NAMES))
def test_a_child_sees_a_part_of_the_source_and_no_setting_of_the_proxy(
    source: dict[str, str], extra: list[str], env_keys: list[str]
) -> None:
    seen = child_environment(source, extra=extra, env_keys=env_keys)
    assert seen.items() <= source.items()
    assert not any(name.upper().startswith("PROXY_") for name in seen)
    assert child_environment(seen, extra=extra, env_keys=env_keys) == seen
