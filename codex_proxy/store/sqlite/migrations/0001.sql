CREATE TABLE steps (
    seq INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    key BLOB NOT NULL,
    created REAL NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (owner, key)
);
CREATE INDEX steps_by_age ON steps (created);
