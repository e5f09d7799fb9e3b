"""What the APIs share to write an answer."""
