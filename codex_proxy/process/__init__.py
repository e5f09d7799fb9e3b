"""Child processes: spawning, supervision, and the plan of who runs where."""
