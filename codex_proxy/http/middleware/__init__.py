"""The aiohttp middlewares."""
