"""Responses: requests, answers, and that the stream and the object are one."""
