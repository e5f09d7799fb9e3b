"""The agent `fake`, which drives the program `fake_proto`."""
