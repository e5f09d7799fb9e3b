"""The agents of a server, made from its settings: each by its name, and one that combines several."""
