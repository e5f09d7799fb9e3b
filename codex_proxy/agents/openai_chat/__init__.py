"""The agent `openai-chat`: a server that speaks Chat Completions, over HTTP."""
