"""A private Codex home for one test, and the environment of a child that sees nothing of the user's.

The home's config.toml points at the scripted model server as a custom provider with a key of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from codex_proxy.agents.codex.plain_home import plain_catalog
from codex_proxy.agents.codex.process_config import LINKED_FILES, plan_shadow_home
from codex_proxy.agents.codex_app_server.app_server_setup import app_server_argv
from tests.real.release import check, codex_path, release
from tests.waiting import PATIENCE

KEY_NAME = "SCRIPTED_MODEL_KEY"
KEY = "scripted-key-1234"
MODEL = "scripted-model"
PROVIDER = "scripted"


@cache
def bundled_catalog() -> bytes:
    """What the binary ships as its model catalog; the same for every home."""
    command = [str(codex_path()), "debug", "models", "--bundled"]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=PATIENCE, env={"CODEX_HOME": home, "HOME": home}
        )
    return done.stdout


@dataclass(frozen=True)
class CodexHome:
    """A home (``path``), an empty folder to work in, and the user's folder that ``HOME`` points to."""

    path: Path
    workdir: Path
    user: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def temporary(self) -> Path:
        """The temporary folder of a child. Codex makes no links to its helpers in a home below it, and without these a
        bubblewrap before 0.9 cannot confine commands."""
        return self.workdir.parent / "temporary"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment of a child."""
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user),
            "TMPDIR": str(self.temporary),
            "CODEX_HOME": str(self.path),
            KEY_NAME: KEY,
            "RUST_LOG": "error",
        }
        return own | dict(more or {})

    def add_config(self, text: str) -> None:
        """Puts further top-level keys and tables into config.toml."""
        self.config.write_text(text + "\n" + self.config.read_text())

    def agent_argv(self) -> tuple[str, ...]:
        """An agent process in this home."""
        return app_server_argv(
            str(codex_path()),
            plan_shadow_home(self.config.read_text()).provider,
            unknown=check().unknown_switches,
            version=release(),
        )

    def shadow(self, folder: Path) -> CodexHome:
        """The shadow home of this one, made on disk in ``folder`` as its plan says."""
        plan = plan_shadow_home(self.config.read_text())
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(plan.config_toml)
        for name in LINKED_FILES:
            (folder / name).symlink_to(self.path / name)
        return CodexHome(folder, self.workdir, self.user)

    def plain_argv(self, *, lite: bool | None = None) -> tuple[str, ...]:
        """A plain-model process in this (shadow) home; writes the patched catalog beside the config."""
        catalog = self.path / "catalog.json"
        catalog.write_bytes(plain_catalog(bundled_catalog(), extra_slugs=[MODEL], lite=lite))
        provider = plan_shadow_home(self.config.read_text()).provider
        unknown = check().unknown_switches
        return app_server_argv(str(codex_path()), provider, catalog=str(catalog), unknown=unknown)


def sign_in_with_chatgpt(home: CodexHome, base_url: str) -> None:
    """Signs the home in with an account that exists nowhere. Its requests go to `base_url`, as to OpenAI."""
    claims = {
        "email": "user@example.com",
        "exp": 4102444800,
        "https://api.openai.com/auth": {"chatgpt_plan_type": "pro", "chatgpt_account_id": "account-1"},
    }
    parts = [{"alg": "none"}, claims, {}]
    token = ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    tokens = {"id_token": token, "access_token": token, "refresh_token": "none", "account_id": "account-1"}
    signed_in = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": datetime.now(UTC).isoformat()}
    (home.path / "auth.json").write_text(json.dumps(signed_in))
    home.config.write_text(
        f'''model = "{MODEL}"
model_provider = "{PROVIDER}"
chatgpt_base_url = "http://127.0.0.1:1/"

[model_providers.{PROVIDER}]
name = "OpenAI"
base_url = "{base_url}"
wire_api = "responses"
requires_openai_auth = true
'''
    )


async def run_exec(home: CodexHome, *arguments: str, environment: Mapping[str, str] | None = None) -> bytes:
    """What `codex exec` prints with this home, these arguments and variables. Fails unless it ends with 0."""
    process = await asyncio.create_subprocess_exec(
        *(str(codex_path()), "exec", "--skip-git-repo-check", *arguments),
        cwd=home.workdir,
        env=home.environment(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return printed


def make_codex_home(root: Path, base_url: str) -> CodexHome:
    """A new home under ``root`` whose provider is the server at ``base_url``."""
    home = CodexHome(root / "codex-home", root / "work", root / "user")
    for folder in (home.path, home.workdir, home.user, home.temporary):
        folder.mkdir(parents=True)
    home.config.write_text(
        f'''model = "{MODEL}"
model_provider = "{PROVIDER}"

[model_providers.{PROVIDER}]
name = "{PROVIDER}"
base_url = "{base_url}"
wire_api = "responses"
env_key = "{KEY_NAME}"
'''
    )
    return home
