"""What the agents of model servers (upstreams) share: settings, HTTP client, and the base of their dialects."""
