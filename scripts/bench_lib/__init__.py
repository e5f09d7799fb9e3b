"""The measurements behind `scripts/bench`: every figure is a ratio to the same work done without the proxy."""
