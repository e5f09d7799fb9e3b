"""MCP servers, whose tools the proxy runs itself: the client side, behind values that know no wire of OpenAI."""
