"""Traces by OpenTelemetry: which spans a request has, and where they are sent. Only `setup` may be imported without the
extra `otel`.
"""
