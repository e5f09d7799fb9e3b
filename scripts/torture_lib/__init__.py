"""The parts of `scripts/torture`: two servers, their clients, and the count of what goes wrong."""
