"""`/v1/responses`: from a body to a run and back, what is kept of it, and what runs on without its client."""
