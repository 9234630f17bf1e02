-- From format 8 to 9: two columns more.

-- How often callers have edited a job, and what they have noted about it.
ALTER TABLE job ADD COLUMN edits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN annotations BLOB;
