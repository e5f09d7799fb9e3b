"""The tables `[upstreams.NAME]` (model servers) and `[agents.NAME]` (agents) of the settings file.

Input: a table as TOML or JSON has it. Output: validated values. Raises pydantic's `ValidationError`, which
names the field. `agents.named` checks whether tables, keys and installed programs match.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from codex_proxy.agents.dialect import Capability
from codex_proxy.agents.upstream.presets import PresetName

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS: Final = frozenset(
    (
        "authorization",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "connection",
        "x-codex-hops",
    )
)
"""Request headers that this server sets itself, so that a table may not."""


_SEPARATORS: Final = {"commas": ",", "colons": ":"}
_SECRET: Final = frozenset({"cookie", "x-api-key", "api-key", "proxy-authorization"})
"""Headers with which clients prove who they are, besides `authorization`."""


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "a name has up to 64 lower-case letters, digits, -, _ and ., and starts with a letter or digit, because "
            "it is the part before the / in model names"
        )
    return name


def _checked_header(name: str) -> str:
    if _HEADER.fullmatch(name) is None or name.lower() in _OWN_HEADERS:
        raise ValueError("this header cannot be set here; set a key with key_env or key_file")
    return name


def _checked_forwarded(name: str) -> str:
    if _checked_header(name).lower() in _SECRET:
        raise ValueError("a client's credentials are never passed on")
    return name.lower()


TableName = Annotated[str, AfterValidator(_checked_name)]
HeaderName = Annotated[str, AfterValidator(_checked_header)]
ForwardedName = Annotated[str, AfterValidator(_checked_forwarded)]


class UpstreamTable(BaseModel):
    """One `[upstreams.NAME]`: a model server, and how requests to it are made. In the descriptions, "it" is the
    model server. A time of None is that of the setting for all upstreams: `upstream_connect_timeout` and so on, or
    `total_timeout`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    preset: PresetName | None = Field(
        None,
        description="the kind of server: sets its URL, the variable of its key, and what it does not support",
    )
    url: str | None = Field(None, description="its URL; without a path, `/v1` is added")
    wire: Literal["chat", "responses"] = Field("chat", description="its API: Chat Completions or Responses")
    key_env: str | None = Field(None, description="environment variable with its API key")
    key_file: Path | None = Field(None, description="file with its API key")
    headers: dict[HeaderName, SecretStr] = Field({}, description="further headers of requests to it")
    models: tuple[str, ...] = Field(
        (), description="its models: names, and patterns with `*`; empty: those that it lists"
    )
    aliases: dict[str, str] = Field({}, description="further names for its models")
    default_model: str | None = Field(
        None, description="model for the table's name; unset: the first in its list"
    )
    cannot: tuple[Capability, ...] = Field(
        (), description="capabilities (docs/agents.md) that it lacks, beside those of the preset"
    )
    context_window: int | None = Field(
        None, ge=1, description="size of its models' context in tokens, if its list has none"
    )
    reasoning_back: Literal["none", "reasoning_content", "reasoning"] | None = Field(
        None,
        description=(
            "field in which its models get the reasoning of their calls back, until the next user message"
        ),
    )
    forward_headers: tuple[ForwardedName, ...] = Field(
        (),
        description="client headers that are forwarded to it, such as `x-request-id`; never keys or cookies",
    )
    ca_file: Path | None = Field(None, description="further trusted certificates (PEM)")
    connect_timeout: float | None = Field(None, gt=0, description="maximum seconds to connect")
    first_byte_timeout: float | None = Field(
        None, gt=0, description="maximum seconds until its answer begins"
    )
    idle_timeout: float | None = Field(
        None, gt=0, description="maximum seconds without data during its answer"
    )
    total_timeout: float | None = Field(None, gt=0, description="maximum seconds of a turn")
    retries: int = Field(
        2,
        ge=0,
        le=10,
        description="further attempts after an error or rate limit, before its answer begins",
    )
    retry_wait: float = Field(
        30.0,
        ge=0,
        description="maximum `Retry-After` in seconds for which another attempt is made",
    )
    fallback: tuple[str, ...] = Field(
        (),
        description="upstreams to try next, before an answer begins: `NAME` or `NAME/MODEL`",
    )
    concurrency: int = Field(0, ge=0, description="maximum running turns; 0: no limit")
    health_interval: float = Field(30.0, gt=0, description="seconds between requests for its list of models")
    breaker_failures: int = Field(
        5,
        ge=0,
        description="consecutive failures after which it gets no request for `breaker_seconds`; 0: off",
    )
    breaker_seconds: float = Field(10.0, gt=0, description="seconds until one turn tries it again")


class AgentTable(BaseModel):
    """One `[agents.NAME]`: which agent it is (`agent`; None: the agent called NAME), and the settings that it
    does not share with the server.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    agent: str | None = Field(
        None, description="the agent, as in `--agent`; unset: the agent with the table's name"
    )

    @property
    def own_settings(self) -> dict[str, Any]:
        """The settings of the server that this table overrides, by name, with values as in the file."""
        return dict(self.model_extra or {})


def text_of(error: ValidationError) -> str:
    """Returns a text about the first problem in `error`, which names the setting. It begins in lower case and has
    no full stop, so that it can be part of a sentence.
    """
    first = error.errors()[0]
    *table, name = place = [str(part) for part in first["loc"] if part != "[key]"]
    if first["type"] == "extra_forbidden" and table:
        advice = "`key_env` or `key_file` names what holds it" if name in ("key", "api_key") else None
        advice = advice or advice_for(name, UpstreamTable.model_fields)
        return f"there is no setting `{name}` in [{'.'.join(table)}]; {advice}"
    return f"the setting {'.'.join(place)} is invalid: {first['msg'].removeprefix('Value error, ')}"


def advice_for(name: str, known: Iterable[str]) -> str:
    """Returns a hint about the unknown setting `name` for the end of an error message: the most similar of the
    `known` names, or else where the documentation lists the settings.
    """
    near = difflib.get_close_matches(name, known, n=1)
    return f"is `{near[0]}` meant?" if near else "docs/configuration.md lists all of them"


def check_names(file: Path, known: Collection[str]) -> None:
    """Checks that the settings file, if it exists, can be read and contains only `known` settings, since a misspelt
    one would be ignored silently.

    Raises `ValueError` with the file's path and the error.
    """
    if not file.is_file():
        return
    try:
        names = tomllib.loads(file.read_text("utf-8"))
    except OSError as fault:
        raise ValueError(f"{file} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:  # no TOML, or no UTF-8
        raise ValueError(f"{file} is not valid TOML: {fault}") from fault
    for name in names:
        if name not in known:
            advice = advice_for(
                name.lower().removeprefix("proxy_"), [each for each in known if each.islower()]
            )
            raise ValueError(f"{file}: there is no setting `{name}`; {advice}")


def joined(value: Any, description: str) -> Any:
    """Returns the value of a setting as the settings expect it: an array of texts, which is how TOML writes a list,
    becomes one text if the setting is a list in a text. `description` is that of the setting, which says what
    separates the list. Other values are returned unchanged.
    """
    separator = next(
        (sign for name, sign in _SEPARATORS.items() if f"separated by {name}" in description), ""
    )
    is_list = separator and isinstance(value, list) and all(isinstance(each, str) for each in value)
    return separator.join(value) if is_list else value
