"""aiohttp middlewares: request ids, access checks, faults, access log."""
