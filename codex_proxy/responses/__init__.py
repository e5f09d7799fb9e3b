"""Responses: what they continue, how they are followed, cancelled and saved. Knows neither HTTP nor agents."""
