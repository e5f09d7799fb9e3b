"""Who asks and what they may do: everything that a turn must pass before it starts, whichever API asked for it."""
