"""A store in one SQLite file.

It uses `sqlite3` directly, because it needs full control of one connection: a transaction that combines many
writes, a savepoint for each of them, and a rollback of only the one that failed. SQLAlchemy would begin
transactions of its own. A migration is a list of statements in one transaction, counted by SQLite's `user_version`.
Of the usual tools, yoyo leaves its lock row behind when the process is killed, and Alembic takes half a second to
import. A store in another database would be another implementation of the interface in `store/interface.py`, checked by
the same tests.
"""
