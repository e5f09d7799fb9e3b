"""The aiohttp application: the only place where surfaces meet runs."""
