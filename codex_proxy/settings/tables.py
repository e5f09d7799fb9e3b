"""What settings are declared with: fields that have variables of their own, and tables, such as `[agents.NAME]`.
`agents.configured.agents` checks whether tables and agents match.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SEPARATORS: Final = {"commas": ",", "colons": ":"}


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "a name has up to 64 lower-case letters, digits, -, _ and ., and starts with a letter or digit, because "
            "it is the part before the / in model names"
        )
    return name


TableName = Annotated[str, AfterValidator(_check_name)]
ONLY_TABLE: Final = "default"
"""The name of a part's table for the only agent."""


def from_variables(*variables: str, **more: Any) -> Any:
    """Returns the field of a setting that is read from these variables."""
    return Field(validation_alias=AliasChoices(*variables), **more)


class SettingsTable(BaseModel, extra="forbid", frozen=True, defer_build=True):
    @field_validator("*", mode="before")
    @classmethod
    def _join_list(cls, value: Any, info: ValidationInfo) -> Any:
        return join_list(value, cls.model_fields[info.field_name or ""].description or "")


class WebhookTable(SettingsTable):
    """`[webhooks]`: which URLs are called when background responses end."""

    urls: str = Field("", description="URLs to call, separated by commas")
    secret: SecretStr | None = Field(None, description="secret that signs webhooks (`whsec_...`)")


class AgentTable(BaseModel, extra="allow", frozen=True, defer_build=True):
    """One `[agents.NAME]`: its `agent`, and settings of its own."""

    agent: str | None = Field(
        None, description="the agent, as in `--agent`; unset: the agent with the table's name"
    )

    @property
    def own_settings(self) -> dict[str, Any]:
        """The settings that this table overrides, with values as in the file."""
        return dict(self.model_extra or {})


def join_list(value: Any, description: str) -> Any:
    """Returns a setting's value. An array of texts (TOML) becomes one text if the `description` says how its list is
    separated.
    """
    separator = next(
        (sign for name, sign in _SEPARATORS.items() if f"separated by {name}" in description), ""
    )
    is_list = separator and isinstance(value, list) and all(isinstance(each, str) for each in value)
    return separator.join(value) if is_list else value
