"""The clients as data, from which all output and documentation about them is made: how each is connected
(`clients.toml`), and how programs are run (`programs.toml`). `{{base_url}}`, `{{root_url}}` (without `/v1`),
`{{model}}` and `{{key}}` are filled in. Source: each client's documentation, and its behaviour with this server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

Format: TypeAlias = Literal["toml", "json", "yaml"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A value in a settings file, at the keys in `path`; missing objects are created, other values stay."""

    path: tuple[str, ...]
    value: Any
    """Any JSON value; its strings may have placeholders."""
    list_key: str = ""
    """The key by which an object in the list at `path` is found, if set: `value` sets the fields of the object with the
    same value for this key, or is appended.
    """
    only_if_missing: bool = False
    only_with_key: bool = False
    """Whether the value is left out if the server requires no key."""


class ListItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in a list: its fields replace those of the one with the same `key`, or it is appended."""

    list: tuple[str, ...]
    key: str
    value: dict[str, Any]


class ModelsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A list of the server's models, called `name`, beside the settings file, which has its path at `key`. The server
    gives it at `/models` with this `query`.
    """

    key: str
    name: str
    query: str


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A settings file at its usual `path` (empty: none). `values` are set, `defaults` only if missing, `with_key` only
    if the server requires a key.
    """

    path: str
    format: Format
    defaults: dict[str, Any] = {}
    values: dict[str, Any] = {}
    with_key: dict[str, Any] = {}
    items: tuple[ListItem, ...] = ()
    models: ModelsFile | None = None
    places: dict[str, str] = {}
    """Where the client has the file instead if a variable is set, by the variable, whose value is `{}`."""

    def path_for(self, environ: Mapping[str, str]) -> str:
        """Returns the path of the user's file; empty if there is no usual one."""
        for variable, place in self.places.items():
            if value := environ.get(variable):
                return place.replace("{}", value)
        return self.path

    @property
    def entries(self) -> tuple[Entry, ...]:
        found = [
            Entry(path=path, value=value, only_if_missing=True) for path, value in _leaves(self.defaults)
        ]
        found += [Entry(path=path, value=value) for path, value in _leaves(self.values)]
        found += [Entry(path=path, value=value, only_with_key=True) for path, value in _leaves(self.with_key)]
        return (*found, *(Entry(path=each.list, value=each.value, list_key=each.key) for each in self.items))


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


class ClientSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a client is set up. `name` is the argument of `connect`."""

    name: str
    title: str
    about: str
    file: ConfigFile | None = None
    steps: str = ""
    """What to enter where in the client itself."""
    language: str = ""
    text: str = ""
    """Code to copy, in this `language`."""
    notes: tuple[str, ...] = ()


class _Document(msgspec.Struct, frozen=True):
    """The file `clients.toml`. `texts`: what replaces a placeholder, by its name."""

    texts: dict[str, str]
    clients: tuple[ClientSetup, ...]


def _claude_environment(clients: tuple[ClientSetup, ...]) -> Mapping[str, str]:
    file = next(client.file for client in clients if client.name == "claude-code")
    assert file is not None
    environment: Mapping[str, str] = file.values["env"]
    return environment


def _with_texts(client: ClientSetup, texts: Mapping[str, str]) -> ClientSetup:
    def fill(text: str) -> str:
        for name, shared in texts.items():
            text = text.replace("{{" + name + "}}", shared)
        return text

    return msgspec.structs.replace(client, text=fill(client.text), notes=tuple(map(fill, client.notes)))


_document = msgspec.toml.decode(Path(__file__).with_name("clients.toml").read_bytes(), type=_Document)

CLAUDE_ENVIRONMENT = _claude_environment(_document.clients)
"""The variables that Claude Code reads when it starts."""

_lines = "\n".join(f'        "{name}": "{value}",' for name, value in CLAUDE_ENVIRONMENT.items())
_texts = _document.texts | {"claude_environment": _lines}
CLIENTS = tuple(_with_texts(client, _texts) for client in _document.clients)
BY_NAME = {client.name: client for client in CLIENTS}


SDK_ENVIRONMENT: Final[Mapping[str, str]] = {
    "OPENAI_BASE_URL": "{{base_url}}",
    "OPENAI_API_BASE": "{{base_url}}",
    "OPENAI_API_KEY": "{{key}}",
    "OPENAI_MODEL": "{{model}}",
    "ANTHROPIC_BASE_URL": "{{root_url}}",
    "ANTHROPIC_API_KEY": "{{key}}",
    "OLLAMA_HOST": "{{root_url}}",
    "OLLAMA_API_KEY": "{{key}}",
}
"""The variables that SDKs and many programs read."""


class ClientProgram(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    setup: str = ""
    """The name of the program's `ClientSetup`; empty if none is used."""
    environment: Mapping[str, str] = msgspec.field(default_factory=lambda: SDK_ENVIRONMENT)
    removed: tuple[str, ...] = ()
    """Variables that would lead the program to another server."""
    arguments: tuple[str, ...] = ()
    """Arguments that come before the user's."""
    home: str = ""
    """The folder of the program's own files; there is none before the first use."""
    home_variable: str = ""
    """The variable that names this folder, if the program has one."""
    fresh: Mapping[str, str] = {}
    """Variables that put the program's own files into the temporary folder, set if there is no `home`, so that nothing
    is left behind.
    """
    install: str = ""
    unserved: str = ""
    """Why the program cannot use this server, if so."""


PROGRAMS: Final = msgspec.toml.decode(
    Path(__file__).with_name("programs.toml").read_bytes(), type=dict[str, ClientProgram]
)
"""Programs by their file's name."""
