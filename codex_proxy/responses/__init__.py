"""Responses: made of requests, followed, cancelled and saved, also without their clients. Knows no HTTP."""
