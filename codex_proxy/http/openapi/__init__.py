"""Builds this server's own OpenAPI document. Imported only when the document is requested."""
