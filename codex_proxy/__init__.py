"""codex-proxy: local coding agents behind an OpenAI- and Anthropic-compatible HTTP API. docs/architecture.md
describes the layers.
"""

__version__ = "0.3.0"
