"""The agents, one package for each: its dialect, which converts between turns and the agent's protocol without IO, and
the code that runs its processes.
"""
