"""Servers that speak Chat Completions, as they are and as they fail: scripted ones, and this proxy itself."""
