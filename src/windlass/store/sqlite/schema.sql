-- The tables of one Windlass file, version 1.
--
-- Times are microseconds since 1970, UTC. `job` everywhere but in its own table is a `job.seq`.
-- States are numbers, in the order of `values.STATES`:
--     0 blocked  1 scheduled  2 queued  3 running  4 succeeded  5 failed  6 cancelled
-- A job waits while its state is below 3, and has ended when it is above. `scrub.py` checks what is promised here.


-- One tenant's queue. Never deleted, so whoever knows its number may keep it.
CREATE TABLE line (
    id     INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    queue  TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX line_name ON line (tenant, queue);
CREATE INDEX line_queue ON line (queue, tenant);


-- One tenant's jobs of one task in one queue: what a claim looks at. Never deleted either.
CREATE TABLE lane (
    id        INTEGER PRIMARY KEY,
    line      INTEGER NOT NULL,
    -- The names of its line, again: so one index finds every lane of a queue that has work.
    tenant    TEXT NOT NULL,
    queue     TEXT NOT NULL,
    task      TEXT NOT NULL,
    -- How many jobs there are in each state.
    blocked   INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    queued    INTEGER NOT NULL DEFAULT 0,
    running   INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX lane_name ON lane (tenant, queue, task);
CREATE INDEX lane_ready ON lane (queue, tenant) WHERE queued > 0;


-- Whatever changes a few times in a job's life. What changes with every sign of life (lease, progress) and what can be
-- large (payload, errors, result) is elsewhere, so that a change of state rewrites a few dozen bytes.
CREATE TABLE job (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT, -- order of arrival; never used twice
    id          BLOB NOT NULL,                     -- sixteen bytes
    lane        INTEGER NOT NULL,
    line        INTEGER NOT NULL,                  -- that lane's
    state       INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    attempt     INTEGER NOT NULL DEFAULT 0,
    crashes     INTEGER NOT NULL DEFAULT 0,
    losses      INTEGER NOT NULL DEFAULT 0,
    errors      INTEGER NOT NULL DEFAULT 0,        -- how many it ever had: the number of its next
    chunks      INTEGER NOT NULL DEFAULT 0,        -- how many pieces of output it ever had
    files       INTEGER NOT NULL,                  -- how many came with it
    followed    INTEGER NOT NULL DEFAULT 0,        -- whether another one waits for it or is to follow it, or did
    size        INTEGER NOT NULL,                  -- bytes of the payload
    reason      TEXT,
    code        INTEGER,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    run_at      INTEGER,
    started_at  INTEGER,
    finished_at INTEGER,
    expires_at  INTEGER,                           -- the wait clock: only on a waiting job that was never claimed
    purge_at    INTEGER,                           -- the keep clock: only on a job that has ended
    worker      TEXT,
    node        TEXT,
    pid         INTEGER,
    waits       BLOB,                              -- ids of those that a blocked job still waits for, one after the other
    terms       BLOB NOT NULL,                     -- as `terms.pack` makes them
    payload     BLOB                               -- if small; else in the table of that name
) STRICT;

CREATE UNIQUE INDEX job_id ON job (id);
-- Every index ends with the row's own key, `seq`; so each of these is in order of arrival where all else is equal.
CREATE INDEX job_ready ON job (lane, priority) WHERE state = 2;
CREATE INDEX job_due ON job (run_at) WHERE state = 1;
CREATE INDEX job_stale ON job (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX job_old ON job (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX job_listing ON job (line, state);


-- A payload too large to be rewritten whenever its job changes.
CREATE TABLE payload (
    job  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;


-- What came with a job beside its payload.
CREATE TABLE file (
    job  INTEGER NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX file_name ON file (job, name);


-- One row for each running job, and for no other.
CREATE TABLE lease (
    job    INTEGER PRIMARY KEY,
    worker TEXT NOT NULL,
    token  BLOB NOT NULL,
    until  INTEGER NOT NULL
) STRICT;

CREATE INDEX lease_holder ON lease (worker, token);
CREATE INDEX lease_until ON lease (until);


-- What the current or last run said of how far it is: MessagePack of `Progress`.
CREATE TABLE progress (
    job  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;


-- What went wrong, the newest hundred of each job: MessagePack of `Error`.
CREATE TABLE error (
    job  INTEGER NOT NULL,
    n    INTEGER NOT NULL, -- from 0
    data BLOB NOT NULL,
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;


-- What a job put out, the newest of it; how much is kept is said in `model/job.py`.
CREATE TABLE output (
    job     INTEGER NOT NULL,
    n       INTEGER NOT NULL, -- from 1, without gaps
    start   INTEGER NOT NULL, -- bytes put out before it, since the job last started anew
    attempt INTEGER NOT NULL,
    stream  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    data    BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX output_place ON output (job, n);


CREATE TABLE result (
    job          INTEGER PRIMARY KEY,
    spent        INTEGER NOT NULL DEFAULT 0, -- read, but to be given to the job that follows
    content_type TEXT NOT NULL,
    data         BLOB NOT NULL
) STRICT;


-- That a job waits for another one. Both by their ids: they may vanish before this does.
CREATE TABLE edge (
    parent BLOB NOT NULL,
    child  BLOB NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;


-- What is to follow a job: as `terms.pack_then` makes it.
CREATE TABLE sequel (
    parent BLOB PRIMARY KEY,
    data   BLOB NOT NULL
) STRICT;


-- Followed jobs that have ended or vanished, until what is due has been done. What belongs to one of these, here and in
-- the two tables above, may outlive it.
CREATE TABLE ripe (
    mark   INTEGER PRIMARY KEY AUTOINCREMENT,
    id     BLOB NOT NULL,
    tenant TEXT NOT NULL,
    state  INTEGER -- NULL = it vanished before it had ended
) STRICT;

CREATE UNIQUE INDEX ripe_id ON ripe (id, tenant);


-- Workers that were heard of; one whose `until` has passed counts as gone.
CREATE TABLE worker (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL,
    until         INTEGER NOT NULL,
    data          BLOB NOT NULL -- MessagePack of `NewWorker`
) STRICT, WITHOUT ROWID;


-- Settings beside the jobs: tokens and the like.
CREATE TABLE record (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
