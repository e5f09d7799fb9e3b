-- Which server runs a background response, until when, and how many have before it.
ALTER TABLE codex_proxy.responses
    ADD COLUMN node text COLLATE "C",
    ADD COLUMN epoch integer NOT NULL DEFAULT 0,
    ADD COLUMN lease_until timestamptz NOT NULL DEFAULT '-infinity';

CREATE TABLE codex_proxy.conversation_turns (
    conversation bigint PRIMARY KEY,
    node text COLLATE "C" NOT NULL,
    lease_until timestamptz NOT NULL
);

CREATE TABLE codex_proxy.nodes (
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    url text NOT NULL,
    version text NOT NULL,
    started double precision NOT NULL,
    seen timestamptz NOT NULL
);
