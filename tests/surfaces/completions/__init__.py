"""OpenAI's Completions API in front of an agent."""
