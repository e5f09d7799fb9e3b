"""The aiohttp application: handlers and middlewares. Only this package uses both `surfaces` and `runs`."""
