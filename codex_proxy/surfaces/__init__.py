"""The wire formats that clients speak: requests are parsed here, answers are rendered. No IO."""
