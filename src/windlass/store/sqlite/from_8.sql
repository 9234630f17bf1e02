-- From format 8 to 9: four columns more.

-- How often callers have edited a job, and what they have noted about it.
ALTER TABLE job ADD COLUMN edits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN annotations BLOB;

-- What a unique job is known by.
ALTER TABLE job ADD COLUMN identity BLOB;
CREATE UNIQUE INDEX job_identity ON job (identity) WHERE identity IS NOT NULL;

-- What a running job uses.
ALTER TABLE lease ADD COLUMN usage BLOB;
