"""The aiohttp middlewares: request ids, access checks, rate limits, errors, and the log of requests."""
