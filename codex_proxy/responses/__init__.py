"""The Responses API without HTTP: starts, streams, follows, cancels and saves responses."""
