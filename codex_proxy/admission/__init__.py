"""Identifies the client of a request, and checks what each turn may do before it starts, whichever API it comes
from.
"""
