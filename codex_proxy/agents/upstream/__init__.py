"""The parts that the agents of model servers (upstreams) share: their settings, the HTTP client, and the base of their
dialects.
"""
