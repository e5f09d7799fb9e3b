"""A store in one SQLite file.

It uses `sqlite3` directly, because one transaction combines many writes, each with a savepoint; SQLAlchemy would begin
transactions of its own. A migration is a list of statements, counted by `user_version`: yoyo leaves its lock behind
when killed, and Alembic takes half a second to import.
"""
