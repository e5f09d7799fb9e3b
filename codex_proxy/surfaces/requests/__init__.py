"""What the APIs share to read a request."""
