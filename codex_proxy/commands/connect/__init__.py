"""`codex-proxy connect CLIENT`: prints how to configure a client for this server, or changes the client's settings
file.
"""
