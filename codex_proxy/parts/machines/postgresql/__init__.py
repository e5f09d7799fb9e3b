"""The store in PostgreSQL, for several servers: one statement for each read or write, in the schema `codex_proxy`.

A statement locks rows in this order: response, conversation, items. If two wait for each other, PostgreSQL undoes one,
which is then repeated (`database`).
"""
