"""The agents: one folder for each, which holds its pure dialect and the code that runs its processes. `registry`
lists them."""
