"""The agents, one package for each: its dialect, which converts between turns and the agent's protocol without IO,
and the code that runs its processes. The modules here are the interface of agents and of dialects, and the registry.
"""
