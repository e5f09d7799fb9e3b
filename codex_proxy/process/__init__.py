"""Child processes: starts, watches and ends them, together with all processes that they start."""
