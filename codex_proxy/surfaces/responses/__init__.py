"""OpenAI's Responses: requests and stored objects in, turns and streams of typed events out. Sans-IO."""
