ALTER TABLE conversations ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
CREATE INDEX conversations_to_remove ON conversations (seq) WHERE deleted = 1;
CREATE INDEX responses_to_remove ON responses (children, background) WHERE deleted = 1;
