-- From format 2 to 3: the owner clock; messages to jobs; lines and lanes that go, with numbers that are never used twice;
-- rounds that end.

ALTER TABLE job ADD COLUMN abandon_at INTEGER;
CREATE INDEX job_unattended ON job (abandon_at) WHERE abandon_at IS NOT NULL;

CREATE TABLE input (
    job    INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    finish INTEGER NOT NULL,
    data   BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX input_place ON input (job, n);

ALTER TABLE round ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turn ADD COLUMN round INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rules ADD COLUMN sweeps INTEGER NOT NULL DEFAULT 0;
INSERT INTO rules (edition, data) SELECT 0, x'80' WHERE NOT EXISTS (SELECT 1 FROM rules);

ALTER TABLE line RENAME TO old_line;
DROP INDEX line_name;
DROP INDEX line_queue;
DROP INDEX line_turn;
DROP INDEX line_first;
CREATE TABLE line (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant   TEXT NOT NULL,
    queue    TEXT NOT NULL,
    start    REAL NOT NULL DEFAULT 0,
    finish   REAL NOT NULL DEFAULT 0,
    priority INTEGER,
    arrival  INTEGER,
    round    INTEGER NOT NULL DEFAULT 0,
    time     REAL NOT NULL DEFAULT 0,
    number   INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX line_name ON line (tenant, queue);
CREATE INDEX line_queue ON line (queue, tenant);
CREATE INDEX line_turn ON line (queue, start, arrival) WHERE arrival IS NOT NULL;
CREATE INDEX line_first ON line (queue, priority, arrival) WHERE arrival IS NOT NULL;
INSERT INTO line (id, tenant, queue, start, finish, priority, arrival, time)
    SELECT id, tenant, queue, start, finish, priority, arrival, time FROM old_line;
DROP TABLE old_line;

ALTER TABLE lane RENAME TO old_lane;
DROP INDEX lane_name;
DROP INDEX lane_open;
DROP INDEX lane_of_line;
DROP INDEX lane_of_task;
DROP INDEX lane_parked;
DROP INDEX lane_shut;
CREATE TABLE lane (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    line      INTEGER NOT NULL,
    tenant    TEXT NOT NULL,
    queue     TEXT NOT NULL,
    task      TEXT NOT NULL,
    bounds    TEXT NOT NULL,
    blocked   INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    queued    INTEGER NOT NULL DEFAULT 0,
    running   INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    priority  INTEGER,
    arrival   INTEGER,
    parked    TEXT,
    shut      INTEGER,
    turns     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX lane_name ON lane (tenant, queue, task, bounds);
CREATE INDEX lane_open ON lane (queue, priority, arrival)
    WHERE arrival IS NOT NULL AND parked IS NULL AND shut IS NULL AND turns = 0;
CREATE INDEX lane_of_line ON lane (line, priority, arrival)
    WHERE arrival IS NOT NULL AND parked IS NULL AND shut IS NULL AND turns < 2;
CREATE INDEX lane_of_task ON lane (line, task, priority, arrival)
    WHERE arrival IS NOT NULL AND parked IS NULL AND shut IS NULL AND turns = 2;
CREATE INDEX lane_parked ON lane (parked, priority, arrival)
    WHERE arrival IS NOT NULL AND parked IS NOT NULL AND shut IS NULL;
CREATE INDEX lane_shut ON lane (shut) WHERE shut IS NOT NULL;
CREATE INDEX lane_held_up ON lane (queue, line)
    WHERE arrival IS NOT NULL AND (parked IS NOT NULL OR shut IS NOT NULL);
CREATE INDEX lane_empty ON lane (id) WHERE running = 0 AND succeeded = 0 AND queued = 0 AND failed = 0
    AND scheduled = 0 AND blocked = 0 AND cancelled = 0;
INSERT INTO lane SELECT * FROM old_lane;
DROP TABLE old_lane;
