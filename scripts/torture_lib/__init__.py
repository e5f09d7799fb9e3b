"""What `scripts/torture` is made of: two servers, their clients, and the count of what went wrong."""
