"""aiohttp middlewares: request ids, doors, faults, access log."""
