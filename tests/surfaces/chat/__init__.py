"""Chat Completions: requests, answers, and that both kinds of answer are one."""
