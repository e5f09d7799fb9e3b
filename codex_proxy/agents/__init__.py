"""The agents, one package for each: its dialect, without IO, and the code that runs its processes."""
