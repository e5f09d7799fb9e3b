"""Runs turns: opens sessions, and appends their events to a log."""
