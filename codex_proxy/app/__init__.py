"""The server: its parts, its start and its end."""
