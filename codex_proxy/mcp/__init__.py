"""The MCP client: sessions with the MCP servers whose tools the proxy runs itself.

Its tools, results and faults are values of its own (`values`), free of OpenAI's wire formats.
"""
