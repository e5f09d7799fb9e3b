"""The values and rules of a turn. This package imports no other package of the project and does no IO."""
