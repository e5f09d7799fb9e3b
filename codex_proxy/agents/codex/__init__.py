"""The parts that all agents that run Codex share: finding the binary, its release, its home, its model catalog and
its sandbox.
"""
