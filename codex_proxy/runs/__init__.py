"""Runs turns: starts sessions with the agent, and appends its events to a log, which several readers follow."""
