"""What outlives a request: responses, conversations, the events of background responses, sums of usage, and the step
memory. Independent of HTTP and agents.
"""
