"""Makes the responses of the Responses API, with or without a client that waits; streams, cancels and saves them.
Knows no HTTP.
"""
