"""Coding agents in the terminal that take a further provider, as data. Each is the agent, so it gets the plain model
(`:model`).

None becomes the program's default: if the program is also the agent behind this server, it reads the same files and
would send its requests back here. Sources: the documentation of each program, and opencode 1.18, Qwen Code 0.24,
Copilot CLI 1.0 and pi 0.74 with this server.
"""

from __future__ import annotations

from codex_proxy.commands.connect.client import CONTEXT_TOKENS, ClientSetup, ConfigFile, Entry

OUTPUT_TOKENS = 32_000
"""The most tokens of an answer that these programs ask for."""
NOT_THE_DEFAULT = (
    "Do not make it the default if the same program is the agent behind this server: it would send its requests "
    "back here."
)

TERMINAL_AGENTS: tuple[ClientSetup, ...] = (
    ClientSetup(
        name="opencode",
        title="opencode",
        about="agent in the terminal",
        file=ConfigFile(
            path="~/.config/opencode/opencode.json",
            format="json",
            entries=(
                Entry(path=("provider", "codex-proxy", "npm"), value="@ai-sdk/openai-compatible"),
                Entry(path=("provider", "codex-proxy", "name"), value="codex-proxy"),
                Entry(path=("provider", "codex-proxy", "options", "baseURL"), value="{{base_url}}"),
                Entry(path=("provider", "codex-proxy", "options", "apiKey"), value="{{key}}"),
                Entry(
                    path=("provider", "codex-proxy", "models", "{{model}}:model"),
                    value={
                        "name": "Codex",
                        "attachment": True,
                        "limit": {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS},
                    },
                ),
            ),
        ),
        language="sh",
        text="opencode -m codex-proxy/{{model}}:model   # or choose it with /models\n",
        notes=(NOT_THE_DEFAULT,),
    ),
    ClientSetup(
        name="qwen-code",
        title="Qwen Code",
        about="agent in the terminal",
        file=ConfigFile(
            path="~/.qwen/settings.json",
            format="json",
            entries=(
                Entry(path=("env", "CODEX_PROXY_KEY"), value="{{key}}"),
                Entry(
                    path=("modelProviders", "openai"),
                    list_key="id",
                    value={
                        "id": "{{model}}:model",
                        "name": "Codex",
                        "baseUrl": "{{base_url}}",
                        "envKey": "CODEX_PROXY_KEY",
                        "generationConfig": {"contextWindowSize": CONTEXT_TOKENS},
                    },
                ),
            ),
        ),
        language="sh",
        text="qwen --auth-type openai --model {{model}}:model   # or choose it with /model\n",
        notes=(NOT_THE_DEFAULT,),
    ),
    ClientSetup(
        name="copilot-cli",
        title="Copilot CLI",
        about="GitHub's agent in the terminal; no account of GitHub's is needed with it",
        language="sh",
        text="""\
export COPILOT_PROVIDER_BASE_URL='{{base_url}}'
export COPILOT_PROVIDER_API_KEY='{{key}}'
export COPILOT_PROVIDER_WIRE_API=completions
export COPILOT_MODEL='{{model}}:model'
export COPILOT_OFFLINE=true   # nothing goes to GitHub
copilot
""",
        notes=("`COPILOT_PROVIDER_WIRE_API=responses` works as well.", NOT_THE_DEFAULT),
    ),
    ClientSetup(
        name="pi",
        title="pi",
        about="agent in the terminal",
        file=ConfigFile(
            path="~/.pi/agent/models.json",
            format="json",
            entries=(
                Entry(path=("providers", "codex-proxy", "baseUrl"), value="{{base_url}}"),
                Entry(path=("providers", "codex-proxy", "api"), value="openai-completions"),
                Entry(path=("providers", "codex-proxy", "apiKey"), value="{{key}}"),
                Entry(
                    path=("providers", "codex-proxy", "models"),
                    list_key="id",
                    value={
                        "id": "{{model}}:model",
                        "name": "Codex",
                        "reasoning": True,
                        "input": ["text", "image"],
                        "contextWindow": CONTEXT_TOKENS,
                        "maxTokens": OUTPUT_TOKENS,
                    },
                ),
            ),
        ),
        language="sh",
        text="pi --provider codex-proxy --model {{model}}:model   # or choose it with /model\n",
    ),
)
