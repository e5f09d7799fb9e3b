"""A local coding agent as an OpenAI endpoint: see docs/architecture.md for the layers."""

__version__ = "0.1.0"
