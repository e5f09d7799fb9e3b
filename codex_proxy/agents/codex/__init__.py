"""What all agents that run Codex share: its binary, release, home, model catalog and sandbox."""
