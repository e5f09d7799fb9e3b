-- Bodies lie apart from the rows that are walked and counted: a chain of 1,000 turns is read through some pages, and a
-- child of a response does not write its parent's text again.

CREATE TABLE items (
    seq INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    digest BLOB NOT NULL,
    created REAL NOT NULL,
    json BLOB NOT NULL,
    raw BLOB NOT NULL,
    UNIQUE (owner, id, digest)
);
CREATE TABLE responses (
    seq INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    parent INTEGER REFERENCES responses (seq),
    previous_id TEXT,
    conversation_id TEXT,
    status TEXT NOT NULL,
    background INTEGER NOT NULL,
    created REAL NOT NULL,
    unfinished INTEGER NOT NULL,
    children INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (owner, id)
);
CREATE INDEX responses_by_parent ON responses (parent);
CREATE INDEX responses_to_finish ON responses (seq) WHERE unfinished = 1;
CREATE INDEX responses_to_prune ON responses (created) WHERE children = 0 AND unfinished = 0;
CREATE INDEX responses_in_background ON responses (created) WHERE background = 1;
CREATE TABLE response_bodies (
    response INTEGER PRIMARY KEY REFERENCES responses (seq) ON DELETE CASCADE,
    json BLOB NOT NULL,
    recovery BLOB NOT NULL
);
CREATE TABLE response_items (
    response INTEGER NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
    side INTEGER NOT NULL,
    position INTEGER NOT NULL,
    item INTEGER NOT NULL REFERENCES items (seq),
    item_id TEXT NOT NULL,
    visible INTEGER NOT NULL,
    PRIMARY KEY (response, side, position),
    UNIQUE (response, side, item_id)
) WITHOUT ROWID;
CREATE INDEX response_items_by_item ON response_items (item);
CREATE TABLE frames (
    response INTEGER NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (response, number)
) WITHOUT ROWID;
CREATE TABLE conversations (
    seq INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    created REAL NOT NULL,
    touched REAL NOT NULL,
    version INTEGER NOT NULL,
    next_position INTEGER NOT NULL,
    metadata BLOB NOT NULL,
    UNIQUE (owner, id)
);
CREATE INDEX conversations_by_use ON conversations (touched);
CREATE TABLE conversation_items (
    conversation INTEGER NOT NULL REFERENCES conversations (seq) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    item INTEGER NOT NULL REFERENCES items (seq),
    item_id TEXT NOT NULL,
    visible INTEGER NOT NULL,
    PRIMARY KEY (conversation, position),
    UNIQUE (conversation, item_id)
) WITHOUT ROWID;
CREATE INDEX conversation_items_by_item ON conversation_items (item);
