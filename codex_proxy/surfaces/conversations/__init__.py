"""OpenAI's Conversations: bodies in, objects out. Sans-IO."""
