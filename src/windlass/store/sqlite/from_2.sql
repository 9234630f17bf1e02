-- From format 2 to 3: the owner clock.

ALTER TABLE job ADD COLUMN abandon_at INTEGER;
CREATE INDEX job_unattended ON job (abandon_at) WHERE abandon_at IS NOT NULL;
