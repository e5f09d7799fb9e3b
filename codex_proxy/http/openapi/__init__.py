"""Builds the OpenAPI document, when it is requested."""
