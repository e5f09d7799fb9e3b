"""The SQL expressions that `store.queries` leaves to the engine."""

from __future__ import annotations

from typing import Final

from codex_proxy.store.queries import SqlDialect
from codex_proxy.store.rows import ITEM

SCHEMA: Final = "codex_proxy."

CHAIN: Final = """
WITH RECURSIVE part (chain) AS (
    SELECT chain || seq FROM codex_proxy.responses WHERE owner = $1 AND id = $2 AND NOT deleted
    UNION ALL
    SELECT earlier.chain FROM part JOIN codex_proxy.responses AS earlier ON earlier.seq = part.chain[1]
    WHERE cardinality(earlier.chain) > 0
), chain AS (
    SELECT unnest(chain) AS seq FROM part
)"""
"""The SQL for the rows of a chain. If a chain is longer than an array, the array's first response has an array with
those before it.
"""
# By nested loops, whatever the planner thinks of tables that it has no statistics of: a chain is a small part of all.
HELD: Final = """
LEFT JOIN LATERAL (
    SELECT side, position, item FROM codex_proxy.response_items WHERE response = chain.seq OFFSET 0
) AS held ON true LEFT JOIN LATERAL (
    SELECT * FROM codex_proxy.items WHERE items.seq = held.item OFFSET 0
) AS items ON true"""
"""The SQL for the items of the rows of a chain."""
CONTEXT: Final = f"""{CHAIN}
SELECT responses.id, side, {ITEM} FROM chain CROSS JOIN LATERAL (
    SELECT responses.id FROM codex_proxy.responses WHERE responses.seq = chain.seq OFFSET 0
) AS responses {HELD}
ORDER BY chain.seq, side, position"""

UNCONTINUED: Final = (
    "NOT EXISTS (SELECT FROM codex_proxy.responses AS child WHERE child.parent = responses.seq)"
)

DIALECT: Final = SqlDialect(
    prefix=SCHEMA,
    parameter="$",
    listed=r"$\1",
    chain=CHAIN,
    context=CONTEXT,
    # As Latin-1 every byte is a character, and "C" has lower case for ASCII only. What is searched for remains bytes,
    # because it may have a character 0.
    has_text="""position(?3 in convert_to(lower(convert_from({0}, 'LATIN1') COLLATE "C"), 'LATIN1')) > 0""",
    as_bytes="convert_to({0}, 'UTF8')",
    ended=f"NOT unfinished AND {UNCONTINUED}",
)
