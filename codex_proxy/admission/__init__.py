"""Identifies a request's client, and checks what each turn may do, in all APIs."""
