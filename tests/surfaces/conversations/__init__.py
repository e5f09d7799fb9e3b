"""Conversations: bodies in, objects out."""
