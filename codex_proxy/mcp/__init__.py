"""The MCP client: sessions with the MCP servers whose tools this proxy runs itself.

Its tools, results and faults are values of its own (`values`), which do not depend on OpenAI's wire
formats.
"""
