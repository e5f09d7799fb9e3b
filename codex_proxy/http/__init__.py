"""The aiohttp application: handlers and middlewares. The only package that uses both the surfaces (API formats) and
the runs.
"""
