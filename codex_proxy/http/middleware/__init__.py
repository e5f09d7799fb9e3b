"""The aiohttp middlewares, and the functions that they call: request ids, access checks, rate limits, errors, and
the log of requests.
"""
