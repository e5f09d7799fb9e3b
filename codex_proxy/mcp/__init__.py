"""The MCP client: sessions with the MCP servers whose tools this proxy runs. Its values (`values`) do not depend on
OpenAI's formats.
"""
