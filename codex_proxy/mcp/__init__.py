"""The MCP client: sessions with the MCP servers whose tools this proxy runs."""
