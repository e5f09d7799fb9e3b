"""The JSON-RPC dialect of `codex app-server`. Sans-IO."""
