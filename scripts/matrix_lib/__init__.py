"""Runs the tests of the real binary with many releases of Codex, and writes down the results."""
