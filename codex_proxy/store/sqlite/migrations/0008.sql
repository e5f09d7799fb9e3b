-- The JSON comes last: the rows above a record are walked, and their JSON may take further pages.

CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    parent INTEGER REFERENCES records (seq),
    created REAL NOT NULL,
    touched REAL NOT NULL,
    busy INTEGER NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0,
    json_sum INTEGER NOT NULL,
    json BLOB NOT NULL,
    UNIQUE (owner, id, kind)
);
CREATE INDEX records_by_kind ON records (owner, kind, seq) WHERE parent IS NULL;
CREATE INDEX records_by_parent ON records (parent, kind, seq) WHERE parent IS NOT NULL;
CREATE INDEX records_by_use ON records (touched) WHERE parent IS NULL;
CREATE INDEX records_at_work ON records (seq) WHERE busy;
CREATE INDEX records_to_remove ON records (seq) WHERE deleted = 1;
