"""The formats of the APIs that clients use: requests are parsed here, and answers are rendered. No IO."""
