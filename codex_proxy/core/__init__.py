"""Values and rules of a turn: imports nothing of ours, does no IO."""
