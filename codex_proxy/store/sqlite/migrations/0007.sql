-- Items have a digest from the beginning.

ALTER TABLE response_bodies ADD COLUMN json_sum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE response_bodies ADD COLUMN recovery_sum INTEGER NOT NULL DEFAULT 0;
UPDATE response_bodies SET json_sum = checksum(json), recovery_sum = checksum(recovery);
ALTER TABLE frames ADD COLUMN data_sum INTEGER NOT NULL DEFAULT 0;
UPDATE frames SET data_sum = checksum(data);
ALTER TABLE conversations ADD COLUMN metadata_sum INTEGER NOT NULL DEFAULT 0;
UPDATE conversations SET metadata_sum = checksum(CAST(metadata AS BLOB));
ALTER TABLE steps ADD COLUMN value_sum INTEGER NOT NULL DEFAULT 0;
UPDATE steps SET value_sum = checksum(value);
