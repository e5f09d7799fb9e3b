"""The aiohttp application: the only package that uses both surfaces and runs."""
