-- What the servers share besides what they store: see store/team.py.

CREATE TABLE codex_proxy.keys (
    name text COLLATE "C" PRIMARY KEY,
    key bytea NOT NULL
);

-- One row: how often the keys have changed.
CREATE TABLE codex_proxy.key_changes (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    version bigint NOT NULL
);

-- Rows live for a minute, and a crash may lose them.
CREATE UNLOGGED TABLE codex_proxy.key_requests (
    owner text COLLATE "C" NOT NULL,
    node text NOT NULL,
    taken bigint NOT NULL,
    running integer NOT NULL,
    seen timestamptz NOT NULL,
    PRIMARY KEY (owner, node)
);
