"""The aiohttp application: handlers and middlewares. Only this package uses both the formats of the APIs (`surfaces`)
and the scheduler of turns (`runs`).
"""
