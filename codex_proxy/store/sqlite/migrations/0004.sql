CREATE TABLE webhooks (
    seq INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL,
    url TEXT NOT NULL,
    body BLOB NOT NULL,
    tries INTEGER NOT NULL,
    UNIQUE (event_id, url)
);
