"""The client's tools and output schemas: who answers a call, what the client does not see, and what the model sees
again. No IO."""
