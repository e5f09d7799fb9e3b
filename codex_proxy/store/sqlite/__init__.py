"""A store in one SQLite file.

It uses `sqlite3` directly, because one transaction combines many writes, each with a savepoint; SQLAlchemy would begin
transactions of its own. No migration tool is used: yoyo leaves its lock behind when killed, and Alembic takes half a
second to import.
"""
