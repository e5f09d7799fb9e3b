"""The clients (editors, SDKs, chat programs) that `codex-proxy connect` can configure: one `ClientSetup`
record for each. Clients of Anthropic's API are in `anthropic_clients`, agents in the terminal in `terminal_agents`.

Everything that is printed, written or documented about a client is made from its record. Sources: the
documentation of each client, and its behaviour with this server.
"""

from __future__ import annotations

from codex_proxy.commands.connect.anthropic_clients import ANTHROPIC_CLIENTS
from codex_proxy.commands.connect.client import CONTEXT_TOKENS, ClientSetup, ConfigFile, Entry
from codex_proxy.commands.connect.terminal_agents import TERMINAL_AGENTS

IN_A_CONTAINER = (
    "For a client in a container, start the server with `--host 0.0.0.0 --api-key KEY` and "
    "`PROXY_ALLOWED_HOSTS=host.docker.internal`; its base URL is `http://host.docker.internal:11435/v1`."
)

CLIENTS: tuple[ClientSetup, ...] = (
    ClientSetup(
        name="continue",
        title="Continue",
        about="VS Code and JetBrains",
        file=ConfigFile(
            path="~/.continue/config.yaml",
            format="yaml",
            entries=(
                Entry(path=("name",), value="Local assistant", only_if_missing=True),
                Entry(path=("version",), value="1.0.0", only_if_missing=True),
                Entry(path=("schema",), value="v1", only_if_missing=True),
                Entry(
                    path=("models",),
                    list_key="name",
                    value={
                        "name": "Codex",
                        "provider": "openai",
                        "model": "{{model}}",
                        "apiBase": "{{base_url}}",
                        "apiKey": "{{key}}",
                        "roles": ["chat", "edit", "apply"],
                        "capabilities": ["tool_use", "image_input"],
                    },
                ),
            ),
        ),
        notes=(
            "Autocompletion wants answers within a few hundred milliseconds: leave it to a smaller model.",
        ),
    ),
    ClientSetup(
        name="cline",
        title="Cline",
        about="VS Code; Roo Code and Kilo Code have the same fields",
        text="""\
In the settings of Cline (the gear):
  API Provider     OpenAI Compatible
  Base URL         {{base_url}}
  API Key          {{key}}
  Model ID         {{model}}:model
  Context Window   272000
  Supports Images  on
""",
        notes=(
            "Cline is the agent here, so it gets the plain model: the suffix `:model` says so. Its settings are in the "
            "editor's own secret storage, which no other program should write.",
        ),
    ),
    ClientSetup(
        name="zed",
        title="Zed",
        about="the editor's agent panel",
        file=ConfigFile(
            path="~/.config/zed/settings.json",
            format="json",
            entries=(
                Entry(
                    path=("language_models", "openai_compatible", "codex-proxy", "api_url"),
                    value="{{base_url}}",
                ),
                Entry(
                    path=("language_models", "openai_compatible", "codex-proxy", "available_models"),
                    list_key="name",
                    value={
                        "name": "{{model}}",
                        "display_name": "Codex",
                        "max_tokens": CONTEXT_TOKENS,
                        "capabilities": {
                            "tools": True,
                            "images": True,
                            "parallel_tool_calls": True,
                            "prompt_cache_key": False,
                        },
                    },
                ),
            ),
        ),
        language="sh",
        text="""\
# Zed takes the key from its settings panel, or from the environment that starts it:
export CODEX_PROXY_API_KEY='{{key}}'
""",
        notes=(
            "Zed writes comments into a new settings file; a file with comments is not changed "
            "by this command.",
        ),
    ),
    ClientSetup(
        name="aider",
        title="Aider",
        about="pair programming in the terminal",
        file=ConfigFile(
            path="~/.aider.conf.yml",
            format="yaml",
            entries=(
                Entry(path=("openai-api-base",), value="{{base_url}}"),
                Entry(path=("openai-api-key",), value="{{key}}"),
                Entry(path=("model",), value="openai/{{model}}"),
                Entry(path=("show-model-warnings",), value=False, only_if_missing=True),
            ),
        ),
        notes=("`openai/` in front of the model's name is Aider's mark for an OpenAI-compatible server.",),
    ),
    ClientSetup(
        name="open-webui",
        title="Open WebUI",
        about="chat in the browser",
        language="sh",
        text="""\
export OPENAI_API_BASE_URL='{{base_url}}'
export OPENAI_API_KEY='{{key}}'
open-webui serve
""",
        notes=(
            "Or in its admin panel: Settings, Connections, OpenAI API, with the same two values.",
            "It asks for titles, tags and follow-ups beside each chat; turn them off under Settings, Interface to save "
            "turns.",
            IN_A_CONTAINER,
        ),
    ),
    ClientSetup(
        name="librechat",
        title="LibreChat",
        about="chat in the browser; `--file` names its librechat.yaml",
        file=ConfigFile(
            path="",
            format="yaml",
            entries=(
                Entry(path=("version",), value="1.2.1", only_if_missing=True),
                Entry(
                    path=("endpoints", "custom"),
                    list_key="name",
                    value={
                        "name": "Codex",
                        "apiKey": "{{key}}",
                        "baseURL": "{{base_url}}",
                        "models": {"default": ["{{model}}"], "fetch": True},
                        "titleConvo": True,
                        "titleModel": "{{model}}",
                        "modelDisplayLabel": "Codex",
                    },
                ),
            ),
        ),
        notes=(IN_A_CONTAINER,),
    ),
    ClientSetup(
        name="obsidian-copilot",
        title="Obsidian Copilot",
        about="chat over your notes",
        text="""\
In Obsidian: Settings, Copilot, Model, Add Custom Model:
  Model Name   {{model}}
  Provider     3rd party (openai-format)
  Base URL     {{base_url}}
  API Key      {{key}}
  Enable CORS  on
""",
        notes=(
            "With `Enable CORS` the plugin's requests go through Obsidian itself, not through its page, and carry no "
            "origin of one.",
        ),
    ),
    ClientSetup(
        name="langchain",
        title="LangChain",
        about="Python (`pip install langchain-openai`)",
        language="python",
        text="""\
from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url="{{base_url}}", api_key="{{key}}", model="{{model}}", stream_usage=True)
for chunk in model.stream("Say hello."):
    print(chunk.text, end="", flush=True)
print()
""",
    ),
    ClientSetup(
        name="litellm",
        title="LiteLLM",
        about="Python (`pip install litellm`)",
        language="python",
        text="""\
import litellm

answer = litellm.completion(
    model="openai/{{model}}",
    api_base="{{base_url}}",
    api_key="{{key}}",
    messages=[{"role": "user", "content": "Say hello."}],
)
print(answer.choices[0].message.content)
""",
        notes=(
            "`openai/` in front of the model's name is LiteLLM's mark for an OpenAI-compatible server. Its proxy takes "
            "the same three values as the `litellm_params` of a model.",
        ),
    ),
    ClientSetup(
        name="pydantic-ai",
        title="Pydantic AI",
        about="Python (`pip install 'pydantic-ai-slim[openai]'`)",
        language="python",
        text="""\
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url="{{base_url}}", api_key="{{key}}")
agent = Agent(OpenAIChatModel("{{model}}", provider=provider))
print(agent.run_sync("Say hello.").output)
""",
        notes=("`OpenAIResponsesModel` works as well.",),
    ),
    ClientSetup(
        name="openai-python",
        title="openai-python",
        about="the official SDK (`pip install openai`)",
        language="python",
        text="""\
from openai import OpenAI

client = OpenAI(base_url="{{base_url}}", api_key="{{key}}")
answer = client.chat.completions.create(
    model="{{model}}", messages=[{"role": "user", "content": "Say hello."}]
)
print(answer.choices[0].message.content)
""",
        notes=("`client.responses.create(...)` works as well.",),
    ),
    ClientSetup(
        name="openai-node",
        title="openai-node",
        about="the official SDK (`npm install openai`)",
        language="js",
        text="""\
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "{{base_url}}", apiKey: "{{key}}" });
const answer = await client.chat.completions.create({
  model: "{{model}}",
  messages: [{ role: "user", content: "Say hello." }],
});
console.log(answer.choices[0].message.content);
""",
    ),
    ClientSetup(
        name="ai-sdk",
        title="Vercel AI SDK",
        about="TypeScript (`npm install ai @ai-sdk/openai-compatible`)",
        language="js",
        text="""\
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const codex = createOpenAICompatible({
  name: "codex-proxy",
  baseURL: "{{base_url}}",
  apiKey: "{{key}}",
  includeUsage: true,
});
const { textStream } = streamText({ model: codex("{{model}}"), prompt: "Say hello." });
for await (const text of textStream) process.stdout.write(text);
""",
        notes=("`createOpenAI` of `@ai-sdk/openai` works as well; it speaks Responses.",),
    ),
    ClientSetup(
        name="codex",
        title="Codex",
        about="another Codex, 0.134 or newer, with this server as its model",
        file=ConfigFile(
            path="~/.codex/codex-proxy.config.toml",
            format="toml",
            entries=(
                Entry(path=("model",), value="{{model}}"),
                Entry(path=("model_provider",), value="codex-proxy"),
                Entry(path=("model_providers", "codex-proxy", "name"), value="codex-proxy"),
                Entry(path=("model_providers", "codex-proxy", "base_url"), value="{{base_url}}"),
                Entry(path=("model_providers", "codex-proxy", "wire_api"), value="responses"),
                Entry(
                    path=("model_providers", "codex-proxy", "env_key"),
                    value="CODEX_PROXY_KEY",
                    only_with_key=True,
                ),
            ),
        ),
        language="sh",
        text="""\
export CODEX_PROXY_KEY='{{key}}'   # only if the server requires a key
codex --profile codex-proxy
""",
        notes=(
            "It is a profile and not the default provider, because the Codex behind this server may read the same "
            "settings and would then send its requests back here.",
        ),
    ),
    *TERMINAL_AGENTS,
    *ANTHROPIC_CLIENTS,
)

BY_NAME = {client.name: client for client in CLIENTS}
