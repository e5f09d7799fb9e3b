"""Runs: a dialect over a child gives a log; cursors read it."""
