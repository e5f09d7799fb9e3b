"""Finds out which features the Codex binary on this machine supports, and stores the answer in the state folder.

Runs the binary to get the schema of its app-server protocol, compares it with the contract (see `contract`), and
tries which start switches it accepts. The answer is valid for one binary (its path, size and modification time) and
one version of the contract; later starts of the server read it from the file. If the answer is older than a day,
the server finds it out again in the background after its start: if the path is that of a script, the binary that it
starts may have changed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from codex_proxy.agents.codex.home_locks import private_home
from codex_proxy.agents.codex.program import misconfigured, output_of
from codex_proxy.agents.codex.switches import COMMON_SWITCHES, PLAIN_SWITCHES, Switch
from codex_proxy.agents.codex_app_server.contract import CONTRACT, ContractCheck, SchemaError, check_contract
from codex_proxy.core.faults import Fault
from codex_proxy.files.private import make_folder, replacing

log = structlog.get_logger(__name__)

SCHEMA_FILE: Final = "codex_app_server_protocol.schemas.json"
"""The name of the file that has the whole schema, among the many that the binary writes."""

KEPT_SECONDS: Final = 86400.0
"""The age in seconds after which a start asks the binary again in the background."""

_NAMED: Final = re.compile(r"(?:configuration field|in) `([^`]+)`")
"""Finds the key in the binary's error about a switch: `unknown configuration field `x`` or, for a value of the
wrong type, `in `x``."""


class BinaryCheck(msgspec.Struct, frozen=True):
    """What a Codex binary lacks: parts of the app-server protocol (`contract`), and start switches."""

    contract: ContractCheck = ContractCheck()
    unknown_switches: tuple[str, ...] = ()
    """The keys of start switches that the binary does not know. Some of them would prevent its start."""


class _Kept(msgspec.Struct, frozen=True):
    """The content of the file `codex-checks/<digest of the path>.json` in the state folder. `check` is what the binary
    lacks; `binary` is the path, size in bytes and modification time in ns of the checked binary; `contract` is the
    digest of `CONTRACT` (what this server needs of the protocol) and of the start switches. If the binary or the
    digest has changed, the check is done again.
    """

    binary: tuple[str, int, int]
    contract: str
    check: BinaryCheck


async def check_binary(program: str, state: str, environment: Mapping[str, str]) -> BinaryCheck:
    """Returns the answer for the binary at the path `program` from the state folder `state`. If the folder has no
    valid one, runs the binary, and stores the answer. `environment` is that of the binary. Raises `Fault` if the
    binary cannot be run, or its schema cannot be read; `OSError` if the state folder cannot be used.
    """
    kept = _read(program, state)
    return kept if kept is not None else await _ask_and_keep(program, state, environment)


async def renew_check(program: str, state: str, environment: Mapping[str, str], now: float) -> None:
    """Runs the binary and stores the answer if the stored one is older than a day. `now` is in seconds since 1970.
    A changed answer is logged, and used from the next start of the server on. A failure is logged; nothing is
    raised.
    """
    try:
        if now - _file(program, state).stat().st_mtime < KEPT_SECONDS:
            return
        before = _read(program, state)
        after = await _ask_and_keep(program, state, environment)
    except (Fault, OSError) as error:
        log.warning("codex_check_failed", reason=str(error))
        return
    if before is not None and before != after:
        log.warning("codex_changed", program=program, advice="Restart the server.")


async def ask_binary(program: str, state: str, environment: Mapping[str, str]) -> BinaryCheck:
    """Runs the binary at the path `program` and returns what it lacks. The answer is not stored; `state` is the
    state folder, for a temporary Codex home. Raises `Fault` if the binary cannot be run, or its schema cannot be
    read.
    """
    with private_home(state) as home:
        base = {**environment, "CODEX_HOME": home}
        schema = await schema_of(program, home, base)
        try:
            contract = check_contract(schema)
        except SchemaError as error:
            raise misconfigured(
                f"{program} app-server wrote a schema that this server cannot read: {error}"
            ) from error
        switches = [*COMMON_SWITCHES, *PLAIN_SWITCHES]
        return BinaryCheck(contract, await unknown_switches((program, "app-server"), switches, base))


async def schema_of(program: str, folder: str, environment: Mapping[str, str]) -> bytes:
    """Returns the JSON Schema of the app-server protocol, which the binary writes into a new folder in `folder`.
    Raises `Fault` if the binary cannot be run, fails, or writes no schema.
    """
    out = Path(folder) / "schema"
    make_folder(out)
    command = (program, "app-server", "generate-json-schema", "--experimental", "--out", str(out))
    await output_of(command, dict(environment))
    try:
        return (out / SCHEMA_FILE).read_bytes()
    except FileNotFoundError as error:
        raise misconfigured(f"{' '.join(command)} wrote no {SCHEMA_FILE}") from error


async def unknown_switches(
    command: tuple[str, ...], switches: Sequence[Switch], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns the keys of those `switches` that the binary does not know, or whose values have a type that it does
    not accept. `command` must be a command of the binary that ends when stdin is empty.

    The binary's error names one key at a time, so it is run again without that key until it accepts the others. If
    the error names none of the keys, returns those found until then.
    """
    left, unknown = list(switches), list[str]()
    while left:
        pairs = [part for switch in left for part in ("-c", f"{switch.key}={switch.value}")]
        try:
            await output_of((*command, "--strict-config", *pairs), dict(environment))
        except Fault as fault:
            found = _NAMED.search(fault.failure.message)
            named = found[1] if found else ""
            refused = [each.key for each in left if each.key == named or each.key.startswith(f"{named}.")]
            if not named or not refused:
                break
            unknown += refused
            left = [each for each in left if each.key not in refused]
        else:
            break
    return tuple(unknown)


async def _ask_and_keep(program: str, state: str, environment: Mapping[str, str]) -> BinaryCheck:
    binary = _binary(program)
    check = await ask_binary(program, state, environment)
    if binary is not None:
        file = _file(program, state)
        make_folder(file.parent)
        with replacing(file) as out:
            out.write(msgspec.json.encode(_Kept(binary, _contract_digest(), check)))
    return check


def _read(program: str, state: str) -> BinaryCheck | None:
    """Returns the stored answer in the state folder `state`; None if there is none that is valid for this binary
    and this contract.
    """
    try:
        kept = msgspec.json.decode(_file(program, state).read_bytes(), type=_Kept)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    fits = kept.binary == _binary(program) and kept.contract == _contract_digest()
    return kept.check if fits else None


def _file(program: str, state: str) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(program))).hexdigest()[:16]
    return Path(state) / "codex-checks" / f"{name}.json"


def _binary(program: str) -> tuple[str, int, int] | None:
    """Returns the resolved path, the size in bytes and the modification time in ns of the binary; None if the file
    does not exist.
    """
    try:
        stat = os.stat(program)
    except OSError:
        return None
    return os.path.realpath(program), stat.st_size, stat.st_mtime_ns


def _contract_digest() -> str:
    """Returns a digest of the contract and of the switches. It changes when either changes."""
    asked = repr((CONTRACT, COMMON_SWITCHES, PLAIN_SWITCHES))
    return hashlib.sha256(asked.encode()).hexdigest()[:16]
