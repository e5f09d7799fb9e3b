"""The wire formats that clients speak: parsing requests, rendering answers. Sans-IO."""
