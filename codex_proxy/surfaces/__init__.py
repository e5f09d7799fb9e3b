"""The formats of the APIs: requests are parsed here, and answers rendered. No IO."""
