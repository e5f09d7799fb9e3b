"""Data that outlives a request: step memory, responses, event frames, conversations. Knows neither HTTP nor agents."""
