"""The settings: every field with its default, where values come from, and what follows from paths."""
