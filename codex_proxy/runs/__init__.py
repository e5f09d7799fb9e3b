"""Runs turns: drives sessions with the agent and appends their events to a log, which several readers follow."""
