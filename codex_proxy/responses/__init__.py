"""The Responses API independent of HTTP: starts, streams, follows, cancels and saves responses."""
