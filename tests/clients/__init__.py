"""Real clients of other makers against this server, each in an environment of its own with its lock."""
