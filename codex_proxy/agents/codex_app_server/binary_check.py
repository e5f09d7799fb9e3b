"""Finds out what the installed Codex supports: compares its protocol schema with the contract, and tries switches. The
answer is stored for a binary (path, size, modification time) and contract, and renewed after a day.
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

from codex_proxy.agents.codex.process_config import COMMON_SWITCHES, PLAIN_SWITCHES, Switch
from codex_proxy.agents.codex.program import output_of
from codex_proxy.agents.codex_app_server.contract import CONTRACT, ContractCheck, SchemaError, check_contract
from codex_proxy.core.faults import Fault, misconfigured
from codex_proxy.files.private import make_folder, replace_file, temporary_folder

log = structlog.get_logger(__name__)

SCHEMA_FILE: Final = "codex_app_server_protocol.schemas.json"

KEPT_SECONDS: Final = 86400.0

_KEY_IN_ERROR: Final = re.compile(r"(?:configuration field|in) `([^`]+)`")
"""Matches the key in the binary's error about a switch."""


class BinaryCheck(msgspec.Struct, frozen=True):
    contract: ContractCheck = ContractCheck()
    unknown_switches: tuple[str, ...] = ()
    """The keys of switches that are left out; some would prevent a start."""


class _StoredCheck(msgspec.Struct, frozen=True):
    """A `BinaryCheck` in a file. `contract`: a digest of the contract and the switches that were checked."""

    binary: tuple[str, int, int]
    contract: str
    check: BinaryCheck


async def check_binary(program: str, state: str, environment: Mapping[str, str]) -> BinaryCheck:
    """Returns what the binary supports: the stored check of this binary or, if there is none, that of a run of it,
    which is then stored. Raises `Fault` or `OSError`.
    """
    kept = _read(program, state)
    return kept if kept is not None else await _ask_and_store(program, state, environment)


async def renew_check(program: str, state: str, environment: Mapping[str, str], now: float) -> None:
    """Renews a check older than a day. A change is logged, and used from the next start on. Raises nothing."""
    try:
        if now - _file(program, state).stat().st_mtime < KEPT_SECONDS:
            return
        before = _read(program, state)
        after = await _ask_and_store(program, state, environment)
    except (Fault, OSError) as error:
        log.warning("codex_check_failed", reason=str(error))
        return
    if before is not None and before != after:
        log.warning("codex_changed", program=program, advice="Restart the server.")


async def ask_binary(program: str, state: str, environment: Mapping[str, str]) -> BinaryCheck:
    """Runs the binary and returns its check. Raises `Fault`."""
    with temporary_folder("home", state) as (home, _):
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
    """Returns the JSON Schema that the binary writes. Raises `Fault`."""
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
    """Returns the switches that the binary does not know or whose type it refuses. Errors name one key, so it is run
    again without each.
    """
    left, unknown = list(switches), list[str]()
    while left:
        pairs = [part for switch in left for part in ("-c", f"{switch.key}={switch.value}")]
        try:
            await output_of((*command, "--strict-config", *pairs), dict(environment))
        except Fault as fault:
            found = _KEY_IN_ERROR.search(fault.failure.message)
            named = found[1] if found else ""
            refused = [each.key for each in left if each.key == named or each.key.startswith(f"{named}.")]
            if not named or not refused:
                break
            unknown += refused
            left = [each for each in left if each.key not in refused]
        else:
            break
    return tuple(unknown)


async def _ask_and_store(program: str, state: str, environment: Mapping[str, str]) -> BinaryCheck:
    binary = _binary(program)
    check = await ask_binary(program, state, environment)
    if binary is not None:
        file = _file(program, state)
        make_folder(file.parent)
        with replace_file(file) as out:
            out.write(msgspec.json.encode(_StoredCheck(binary, _contract_digest(), check)))
    return check


def _read(program: str, state: str) -> BinaryCheck | None:
    try:
        kept = msgspec.json.decode(_file(program, state).read_bytes(), type=_StoredCheck)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    fits = kept.binary == _binary(program) and kept.contract == _contract_digest()
    return kept.check if fits else None


def _file(program: str, state: str) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(program))).hexdigest()[:16]
    return Path(state) / "codex-checks" / f"{name}.json"


def _binary(program: str) -> tuple[str, int, int] | None:
    try:
        stat = os.stat(program)
    except OSError:
        return None
    return os.path.realpath(program), stat.st_size, stat.st_mtime_ns


def _contract_digest() -> str:
    asked = repr((CONTRACT, COMMON_SWITCHES, PLAIN_SWITCHES))
    return hashlib.sha256(asked.encode()).hexdigest()[:16]
