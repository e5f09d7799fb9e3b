"""The client's tools and output schemas: who answers a call, checks of answers, and the restored history. No IO."""
