"""What the dialects of several agents share. The interface of a dialect is `agents.dialect`."""
