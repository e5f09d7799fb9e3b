"""The Responses API independent of HTTP: starts, streams, follows, cancels and saves responses, in the foreground (a
client waits) and in the background.
"""
