"""The server: what is built from the settings, its start and its end."""
