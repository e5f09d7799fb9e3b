"""The clients of Anthropic's API, as data. They need the address without `/v1`, and always a key.

Sources: the documentation of each client, and Claude Code 2.1.330 with this server.
"""

from __future__ import annotations

from codex_proxy.commands.connect.client import CONTEXT_TOKENS, ClientSetup, ConfigFile, Entry

SLOTS = ("OPUS", "SONNET", "HAIKU", "FABLE")
"""The kinds of models that Claude Code asks for; a variable names each."""

ENVIRONMENT = {
    "ANTHROPIC_BASE_URL": "{{root_url}}",
    "ANTHROPIC_AUTH_TOKEN": "{{key}}",
    "ANTHROPIC_MODEL": "{{model}}:model",
    **{f"ANTHROPIC_DEFAULT_{slot}_MODEL": "{{model}}:model" for slot in SLOTS},
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT_TOKENS),
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
}
"""The environment variables that Claude Code reads when it starts."""

PLAIN_MODEL = (
    "Claude Code is the agent here, so it gets the plain model: the suffix `:model` says so, also in its requests "
    "without tools."
)

ANTHROPIC_CLIENTS: tuple[ClientSetup, ...] = (
    ClientSetup(
        name="claude-code",
        title="Claude Code",
        about="Anthropic's agent in the terminal, with this server's models",
        file=ConfigFile(
            path="~/.claude/settings.json",
            format="json",
            entries=tuple(Entry(path=("env", name), value=value) for name, value in ENVIRONMENT.items()),
        ),
        notes=(
            PLAIN_MODEL,
            "Claude Code assumes a context of a million tokens for Claude's own names; for other names "
            "`CLAUDE_CODE_MAX_CONTEXT_TOKENS` says when to summarise. The `/model` picker lists the names with "
            "`claude` in them (`claude-codex-5-high`).",
            "If Claude Code is also the agent behind this server, put this only into the client's environment: the "
            "agent reads the same file, and would send its requests here.",
            "For one session only, put the same into the environment; for one project, into its "
            "`.claude/settings.json` (`--file`). If you are signed in with Anthropic, the token here comes first.",
        ),
    ),
    ClientSetup(
        name="agent-sdk",
        title="Claude Agent SDK",
        about="Python (`pip install claude-agent-sdk`); the TypeScript SDK has the same `env`",
        language="python",
        text="""\
import asyncio

from claude_agent_sdk import ClaudeAgentOptions, query

options = ClaudeAgentOptions(
    model="{{model}}:model",
    env={
"""
        + "".join(f'        "{name}": "{value}",\n' for name, value in ENVIRONMENT.items())
        + """\
    },
)


async def main() -> None:
    async for message in query(prompt="Say hello.", options=options):
        print(message)


asyncio.run(main())
""",
    ),
    ClientSetup(
        name="anthropic-python",
        title="anthropic-sdk-python",
        about="the official SDK (`pip install anthropic`)",
        language="python",
        text="""\
from anthropic import Anthropic

client = Anthropic(base_url="{{root_url}}", api_key="{{key}}")
answer = client.messages.create(
    model="{{model}}", max_tokens=1024, messages=[{"role": "user", "content": "Say hello."}]
)
print("".join(block.text for block in answer.content if block.type == "text"))
""",
        notes=(
            "LangChain's `ChatAnthropic` takes the same `base_url`, `api_key` and `model`.",
            "For code that names Claude's models, start the server with `PROXY_MODEL_ALIASES='claude-*=codex-5'`.",
        ),
    ),
    ClientSetup(
        name="anthropic-node",
        title="anthropic-sdk-typescript",
        about="the official SDK (`npm install @anthropic-ai/sdk`)",
        language="js",
        text="""\
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: "{{root_url}}", apiKey: "{{key}}" });
const answer = await client.messages.create({
  model: "{{model}}",
  max_tokens: 1024,
  messages: [{ role: "user", content: "Say hello." }],
});
console.log(answer.content.map((block) => (block.type === "text" ? block.text : "")).join(""));
""",
        notes=("`createAnthropic` of `@ai-sdk/anthropic` wants `/v1` at the end of its `baseURL`.",),
    ),
    ClientSetup(
        name="cline-anthropic",
        title="Cline, with Anthropic's API",
        about="VS Code; Roo Code and Kilo Code have the same fields",
        text="""\
In the settings of Cline (the gear):
  API Provider          Anthropic
  Anthropic API Key     {{key}}
  Use custom base URL   {{root_url}}
  Model                 any of the list
""",
        notes=(
            "Its list has Claude's models only: start the server with `PROXY_MODEL_ALIASES='claude-*=codex-5:model'`, "
            "which takes each of them for Codex's.",
        ),
    ),
    ClientSetup(
        name="zed-anthropic",
        title="Zed, with Anthropic's API",
        about="the editor's agent panel",
        file=ConfigFile(
            path="~/.config/zed/settings.json",
            format="json",
            entries=(
                Entry(path=("language_models", "anthropic", "api_url"), value="{{root_url}}"),
                Entry(
                    path=("language_models", "anthropic", "available_models"),
                    list_key="name",
                    value={
                        "name": "{{model}}",
                        "display_name": "Codex",
                        "max_tokens": CONTEXT_TOKENS,
                        "max_output_tokens": 32_000,
                    },
                ),
            ),
        ),
        language="sh",
        text="""\
# Zed takes the key from its settings panel, or from the environment that starts it:
export ANTHROPIC_API_KEY='{{key}}'
""",
        notes=(
            "All of Zed's requests to Anthropic come here then; `connect zed` adds a provider beside the others.",
        ),
    ),
)
