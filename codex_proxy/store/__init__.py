"""What outlives a request: responses, conversations, events of background responses, sums of usage, and the step
memory. Independent of HTTP and agents.
"""
