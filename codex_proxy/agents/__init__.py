"""One dialect per agent: what its lines mean in our vocabulary. Sans-IO."""
