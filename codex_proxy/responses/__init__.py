"""Makes responses of requests, also without their clients; streams, cancels and saves them. Knows no HTTP."""
