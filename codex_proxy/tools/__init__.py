"""Tools of the client: who answers a call, what stays hidden, and what the model sees again. Sans-IO."""
