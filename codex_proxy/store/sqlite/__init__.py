"""A store in one SQLite file.

Plain `sqlite3`, and not SQLAlchemy with Alembic or yoyo. What this store is made of is exact control over one
connection: a transaction that gathers many writes, a savepoint for each of them, a rollback that takes only the
one that failed; a layer between would have to be talked out of its own transactions first. A migration here is
a list of statements and SQLite's own `user_version`, in one transaction: yoyo's lock row stays behind when the
process is killed, and Alembic brings half a second of imports. PostgreSQL comes in as a second implementation of
`store.base`, held to the same tests, not as a dialect of this one.
"""
