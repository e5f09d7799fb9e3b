"""Processes of our own for work that may take long: each has a limit of CPU time and memory, and can be killed."""
