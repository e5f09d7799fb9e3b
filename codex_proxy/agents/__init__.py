"""The agents: one folder each, listed in `registry`. What drives a child is beside its dialect, which is pure."""
