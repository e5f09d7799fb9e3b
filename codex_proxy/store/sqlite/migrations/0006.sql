-- What a conversation holds, so that a write need not count it.

ALTER TABLE conversations ADD COLUMN items INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE conversations SET (items, bytes) = (
    SELECT count(*), coalesce(sum(length(json) + length(raw)), 0)
    FROM conversation_items JOIN items ON items.seq = item WHERE conversation = conversations.seq
);
