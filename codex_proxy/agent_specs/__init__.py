"""The agents that a server can be started with: the registry, and a module for each agent's settings and checks.

Part of the wiring, like `app`: it may know every layer.
"""
