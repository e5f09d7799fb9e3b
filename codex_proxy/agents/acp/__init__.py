"""Agents that speak the Agent Client Protocol (ACP): JSON-RPC over the lines of stdin and stdout."""
