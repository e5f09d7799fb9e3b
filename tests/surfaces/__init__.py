"""The surfaces: what comes in as bytes, what goes out as bytes."""
