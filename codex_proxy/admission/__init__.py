"""Identifies the client of a request, and checks what each turn may do, whichever API it comes from."""
