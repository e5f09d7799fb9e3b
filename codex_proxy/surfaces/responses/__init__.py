"""The format of OpenAI's Responses API: parses requests, renders responses."""
