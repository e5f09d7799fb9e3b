"""This server's own OpenAPI document. Loaded when somebody asks for it, and never by a turn."""
