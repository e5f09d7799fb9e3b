"""The aiohttp application: handlers and middlewares. This is the only package that uses both the formats of the
APIs (`surfaces`) and the scheduler of turns (`runs`).
"""
