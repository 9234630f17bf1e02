-- The tables of a file of format 2, to see that such a file is brought up to date.

CREATE TABLE line (
    id       INTEGER PRIMARY KEY,
    tenant   TEXT NOT NULL,
    queue    TEXT NOT NULL,
    start    REAL NOT NULL DEFAULT 0,
    finish   REAL NOT NULL DEFAULT 0,
    priority INTEGER,
    arrival  INTEGER,
    time     REAL NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX line_name ON line (tenant, queue);
CREATE INDEX line_queue ON line (queue, tenant);
CREATE INDEX line_turn ON line (queue, start, arrival) WHERE arrival IS NOT NULL;
CREATE INDEX line_first ON line (queue, priority, arrival) WHERE arrival IS NOT NULL;

CREATE TABLE lane (
    id        INTEGER PRIMARY KEY,
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

CREATE TABLE member (
    bucket TEXT NOT NULL,
    lane   INTEGER NOT NULL,
    PRIMARY KEY (bucket, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE bucket (
    name       TEXT PRIMARY KEY,
    running    INTEGER NOT NULL DEFAULT 0,
    held_until INTEGER NOT NULL DEFAULT 0,
    starts     INTEGER NOT NULL DEFAULT 0,
    full_at    INTEGER NOT NULL DEFAULT 0,
    wake_at    INTEGER,
    stirred    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX bucket_wake ON bucket (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX bucket_stirred ON bucket (name) WHERE stirred;

CREATE TABLE start (
    bucket TEXT NOT NULL,
    n      INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (bucket, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE round (
    queue TEXT PRIMARY KEY,
    time  REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE turn (
    line     INTEGER NOT NULL,
    task     TEXT NOT NULL,
    start    REAL NOT NULL DEFAULT 0,
    finish   REAL NOT NULL DEFAULT 0,
    priority INTEGER,
    arrival  INTEGER,
    PRIMARY KEY (line, task)
) STRICT, WITHOUT ROWID;

CREATE INDEX turn_order ON turn (line, start, arrival) WHERE arrival IS NOT NULL;

CREATE TABLE rules (
    edition INTEGER NOT NULL,
    data    BLOB NOT NULL
) STRICT;

CREATE TABLE job (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          BLOB NOT NULL,
    lane        INTEGER NOT NULL,
    line        INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    attempt     INTEGER NOT NULL DEFAULT 0,
    crashes     INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0,
    errors      INTEGER NOT NULL DEFAULT 0,
    chunks      INTEGER NOT NULL DEFAULT 0,
    files       INTEGER NOT NULL,
    followed    INTEGER NOT NULL DEFAULT 0,
    size        INTEGER NOT NULL,
    reason      TEXT,
    code        INTEGER,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    run_at      INTEGER,
    started_at  INTEGER,
    finished_at INTEGER,
    expires_at  INTEGER,
    purge_at    INTEGER,
    worker      TEXT,
    node        TEXT,
    pid         INTEGER,
    assigned    TEXT,
    seconds     REAL,
    waits       BLOB,
    terms       BLOB NOT NULL,
    payload     BLOB
) STRICT;

CREATE UNIQUE INDEX job_id ON job (id);
CREATE INDEX job_ready ON job (lane, priority) WHERE state = 2;
CREATE INDEX job_due ON job (run_at) WHERE state = 1;
CREATE INDEX job_stale ON job (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX job_old ON job (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX job_listing ON job (line, state);

CREATE TABLE payload (
    job  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE file (
    job  INTEGER NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX file_name ON file (job, name);

CREATE TABLE lease (
    job    INTEGER PRIMARY KEY,
    worker TEXT NOT NULL,
    token  BLOB NOT NULL,
    until  INTEGER NOT NULL
) STRICT;

CREATE INDEX lease_holder ON lease (worker, token);
CREATE INDEX lease_until ON lease (until);

CREATE TABLE progress (
    job  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE error (
    job  INTEGER NOT NULL,
    n    INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE output (
    job     INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    start   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    stream  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    data    BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX output_place ON output (job, n);

CREATE TABLE result (
    job          INTEGER PRIMARY KEY,
    spent        INTEGER NOT NULL DEFAULT 0,
    content_type TEXT NOT NULL,
    data         BLOB NOT NULL
) STRICT;

CREATE TABLE edge (
    parent BLOB NOT NULL,
    child  BLOB NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;

CREATE TABLE sequel (
    parent BLOB PRIMARY KEY,
    data   BLOB NOT NULL
) STRICT;

CREATE TABLE ripe (
    mark   INTEGER PRIMARY KEY AUTOINCREMENT,
    id     BLOB NOT NULL,
    tenant TEXT NOT NULL,
    state  INTEGER
) STRICT;

CREATE UNIQUE INDEX ripe_id ON ripe (id, tenant);

CREATE TABLE worker (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL,
    until         INTEGER NOT NULL,
    data          BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE record (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
