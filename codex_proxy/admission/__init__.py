"""Who asks, and what they may do: the checks that each turn passes before it starts, whichever API it comes from."""
