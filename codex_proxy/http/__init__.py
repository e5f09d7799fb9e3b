"""The aiohttp application: handlers and middlewares."""
