"""A store in one SQLite file.

It uses `sqlite3` directly, because it needs full control of one connection: a transaction that combines many
writes, a savepoint for each of them, and a rollback of only the one that failed. SQLAlchemy would begin
transactions of its own. A migration is a list of statements in one transaction, counted by SQLite's `user_version`.
yoyo's lock row stays behind when the process is killed, and Alembic takes half a second to import. Another database
would be another implementation of `store.base`, held to the same tests.
"""
