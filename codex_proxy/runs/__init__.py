"""Runs: drive sessions with an agent and write their events into a log, which cursors read."""
