-- From format 6 to 7: two tables and a column more.

-- The latest time of the store and what the host's clock showed then, noted every few seconds: see `transaction.py`.
CREATE TABLE clock (
    latest INTEGER NOT NULL,
    host   INTEGER NOT NULL
) STRICT;

INSERT INTO clock (latest, host) VALUES (0, 0);

-- Whether a run has left a file.
ALTER TABLE file ADD COLUMN from_run INTEGER NOT NULL DEFAULT 0;
DROP INDEX file_name;
CREATE UNIQUE INDEX file_name ON file (job, from_run, name);

-- Files that were uploaded before the jobs that name them by their SHA-256.
CREATE TABLE upload (
    tenant     TEXT NOT NULL,
    digest     BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    data       BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX upload_digest ON upload (tenant, digest);
CREATE INDEX upload_expiry ON upload (tenant, expires_at);
CREATE INDEX upload_old ON upload (expires_at);

-- What a worker uses.
ALTER TABLE worker ADD COLUMN memory INTEGER;
ALTER TABLE worker ADD COLUMN cpu REAL;
