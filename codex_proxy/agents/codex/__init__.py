"""The parts that are common to all agents that run Codex: its binary, release, home folder, model catalog and
sandbox.
"""
