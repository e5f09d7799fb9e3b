"""The handlers of `/v1/responses`."""
