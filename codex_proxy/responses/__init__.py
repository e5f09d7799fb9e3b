"""The part of the Responses API that is independent of HTTP: starts the turns of responses, in the foreground (a
client waits for the answer) and in the background; streams, follows, cancels and saves them.
"""
