"""What every agent that runs Codex shares: the binary, its releases, its home, its model catalog and sandbox."""
