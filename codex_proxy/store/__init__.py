"""Data that outlives a request: responses, conversations, the stream events of background responses, sums of usage,
and the step memory (which keeps the model's own items of a turn that ended with tool calls, until the client sends
the outputs). Independent of HTTP and agents.
"""
