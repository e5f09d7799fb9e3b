"""The agent `auto`, which becomes the agent for the installed Codex."""
