"""The store in PostgreSQL, for several servers: one statement for each read or write, in the schema `codex_proxy`.

A statement locks rows in this order: response, conversation, items. Where two meet in another one, PostgreSQL undoes
one of them, which is then repeated (`database`).
"""
