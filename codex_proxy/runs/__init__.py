"""Runs turns: starts sessions with the agent, and appends the agent's events to a log, which several readers
follow.
"""
