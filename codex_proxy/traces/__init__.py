"""Traces by OpenTelemetry. Only `setup` may be imported without the extra `otel`."""
