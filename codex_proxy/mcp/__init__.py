"""The MCP client: sessions with the MCP servers whose tools this server runs."""
