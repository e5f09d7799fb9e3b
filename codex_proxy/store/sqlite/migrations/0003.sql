CREATE TABLE usage (
    owner TEXT NOT NULL,
    hour INTEGER NOT NULL,
    model TEXT NOT NULL,
    turns INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    PRIMARY KEY (owner, hour, model)
) WITHOUT ROWID;
