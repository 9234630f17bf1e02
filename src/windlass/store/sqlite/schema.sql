-- The tables of one Windlass file, format 9.
--
-- Times are microseconds since 1970, UTC. A column `job` is a `job.seq`.
-- The `id` of a job, here and as a parent or child, is its key: the sixteen bytes of its id, then the name of its tenant
-- unless that is `default`. So the same id in two tenants is two jobs.
-- States are numbers, in the order of `transaction.STATES`:
--     0 blocked  1 scheduled  2 queued  3 running  4 succeeded  5 failed  6 cancelled
-- A job waits while its state is below 3, and has ended when it is above. `scrub.py` checks what is promised here.


-- One tenant's queue. Deleted some time after its last lane; its id is never used twice.
CREATE TABLE tenant_queue (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant   TEXT NOT NULL,
    queue    TEXT NOT NULL,
    -- Its turn among the tenants of a queue where they take turns, and its first open job where it takes part in that or
    -- its tasks take turns. See `flow.py`.
    start    REAL NOT NULL DEFAULT 0,
    finish   REAL NOT NULL DEFAULT 0,
    priority INTEGER,
    arrival  INTEGER, -- NULL = it has no open lane
    round    INTEGER NOT NULL DEFAULT 0, -- the number of the round that `finish` belongs to
    -- The round of its own tasks.
    time     REAL NOT NULL DEFAULT 0,
    number   INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX tenant_queue_name ON tenant_queue (tenant, queue);
CREATE INDEX tenant_queue_queue ON tenant_queue (queue, tenant);
CREATE INDEX tenant_queue_turn ON tenant_queue (queue, start, arrival) WHERE arrival IS NOT NULL;
CREATE INDEX tenant_queue_first ON tenant_queue (queue, priority, arrival) WHERE arrival IS NOT NULL;


-- One tenant's jobs of one task with the same limit keys in one queue: what a claim looks at. Deleted some time after its
-- last job; its id is never used twice.
CREATE TABLE lane (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant_queue INTEGER NOT NULL,
    -- The names of its tenant's queue, again: so one index finds every lane of a queue that has work.
    tenant       TEXT NOT NULL,
    queue        TEXT NOT NULL,
    task         TEXT NOT NULL,
    limit_keys   TEXT NOT NULL, -- with its tier class, as `store/flow.py` describes
    -- How many jobs there are in each state.
    blocked      INTEGER NOT NULL DEFAULT 0,
    scheduled    INTEGER NOT NULL DEFAULT 0,
    queued       INTEGER NOT NULL DEFAULT 0,
    running      INTEGER NOT NULL DEFAULT 0,
    succeeded    INTEGER NOT NULL DEFAULT 0,
    failed       INTEGER NOT NULL DEFAULT 0,
    cancelled    INTEGER NOT NULL DEFAULT 0,
    -- The first of those that are queued.
    priority     INTEGER,
    arrival      INTEGER, -- its `seq`; NULL = none is queued
    -- Why claims do not look at it. A lane with neither is open.
    blocker      TEXT,    -- the bucket that was full when a claim last looked
    paused_until INTEGER,
    -- Who takes turns: 0 none, 1 the tenants of its queue, 2 the tasks of its tenant's queue (and perhaps the tenants too).
    turns        INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX lane_name ON lane (tenant, queue, task, limit_keys);
-- Open lanes, as a claim looks for them: in a queue, in a tenant's queue, or where tasks take turns.
CREATE INDEX lane_open ON lane (queue, priority, arrival)
    WHERE arrival IS NOT NULL AND blocker IS NULL AND paused_until IS NULL AND turns = 0;
CREATE INDEX lane_of_tenant_queue ON lane (tenant_queue, priority, arrival)
    WHERE arrival IS NOT NULL AND blocker IS NULL AND paused_until IS NULL AND turns < 2;
CREATE INDEX lane_of_task ON lane (tenant_queue, task, priority, arrival)
    WHERE arrival IS NOT NULL AND blocker IS NULL AND paused_until IS NULL AND turns = 2;
-- Those that are blocked and not paused.
CREATE INDEX lane_blocked ON lane (blocker, priority, arrival)
    WHERE arrival IS NOT NULL AND blocker IS NOT NULL AND paused_until IS NULL;
CREATE INDEX lane_paused ON lane (paused_until) WHERE paused_until IS NOT NULL;
-- Those that have work and are not open.
CREATE INDEX lane_not_open ON lane (queue, tenant_queue)
    WHERE arrival IS NOT NULL AND (blocker IS NOT NULL OR paused_until IS NOT NULL);
-- Those without jobs.
CREATE INDEX lane_empty ON lane (id) WHERE running = 0 AND succeeded = 0 AND queued = 0 AND failed = 0
    AND scheduled = 0 AND blocked = 0 AND cancelled = 0;


-- The lanes of each bucket, as long as they exist.
CREATE TABLE member (
    bucket TEXT NOT NULL,
    lane   INTEGER NOT NULL,
    PRIMARY KEY (bucket, lane)
) STRICT, WITHOUT ROWID;


-- The state of a bucket: a limit key, or a level of tiers (`TENANT,QUEUE#2`). One without a row is empty.
CREATE TABLE bucket (
    name       TEXT PRIMARY KEY,
    running    INTEGER NOT NULL DEFAULT 0,
    held_until INTEGER NOT NULL DEFAULT 0,
    starts     INTEGER NOT NULL DEFAULT 0, -- how many it ever had while its rate had no burst
    full_at    INTEGER NOT NULL DEFAULT 0, -- nanoseconds: when all tokens are back, where there is a burst
    wake_at    INTEGER,                    -- when the clock lets the lanes start that it blocks
    dirty      INTEGER NOT NULL DEFAULT 0  -- whether it left lanes blocked when it had room
) STRICT, WITHOUT ROWID;

CREATE INDEX bucket_wake ON bucket (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX bucket_dirty ON bucket (name) WHERE dirty;


-- When jobs of a bucket were started, as far back as its rate looks.
CREATE TABLE start (
    bucket TEXT NOT NULL,
    n      INTEGER NOT NULL, -- from 0
    at     INTEGER NOT NULL,
    PRIMARY KEY (bucket, n)
) STRICT, WITHOUT ROWID;


-- The round of the tenants of a queue where they take turns.
CREATE TABLE round (
    queue  TEXT PRIMARY KEY,
    time   REAL NOT NULL,
    number INTEGER NOT NULL DEFAULT 0 -- of the round: when no tenant waits any more, the next one begins
) STRICT, WITHOUT ROWID;


-- The turn of a task in a tenant's queue where tasks take turns; its columns are like those of `tenant_queue`.
CREATE TABLE turn (
    tenant_queue INTEGER NOT NULL,
    task         TEXT NOT NULL,
    start        REAL NOT NULL DEFAULT 0,
    finish       REAL NOT NULL DEFAULT 0,
    priority     INTEGER,
    arrival      INTEGER,
    round        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_queue, task)
) STRICT, WITHOUT ROWID;

CREATE INDEX turn_order ON turn (tenant_queue, start, arrival) WHERE arrival IS NOT NULL;


-- The latest time of the store and what the host's clock showed then, noted every few seconds: see `transaction.py`.
CREATE TABLE clock (
    latest INTEGER NOT NULL,
    host   INTEGER NOT NULL
) STRICT;

INSERT INTO clock (latest, host) VALUES (0, 0);


-- The one set of rules in force.
CREATE TABLE rules (
    version INTEGER NOT NULL,
    data    BLOB NOT NULL,   -- MessagePack of `Rules`
    sweeps  INTEGER NOT NULL -- how often lanes were deleted: then cached names of lanes are no longer valid
) STRICT;

INSERT INTO rules (version, data, sweeps) VALUES (0, x'80', 0);


-- What changes a few times in a job's life. What changes with every heartbeat (lease, progress) and what can be large
-- (payload, errors, result) is elsewhere, so that a change of state rewrites a few dozen bytes.
-- A new job's `seq` is one more than the largest. So that of the newest job is used again if that is deleted before the next
-- comes, with every row that refers to it. AUTOINCREMENT would prevent that, for another page in each commit.
CREATE TABLE job (
    seq          INTEGER PRIMARY KEY,              -- order of arrival
    id           BLOB NOT NULL,                    -- its key
    lane         INTEGER NOT NULL,
    tenant_queue INTEGER NOT NULL,                 -- that lane's
    state        INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    attempt      INTEGER NOT NULL DEFAULT 0,
    crashes      INTEGER NOT NULL DEFAULT 0,
    losses       INTEGER NOT NULL DEFAULT 0,
    errors       INTEGER NOT NULL DEFAULT 0,       -- how many it ever had: the number of its next
    chunks       INTEGER NOT NULL DEFAULT 0,       -- how many chunks of output it ever had
    files        INTEGER NOT NULL,                 -- how many came with it and are still here
    followed     INTEGER NOT NULL DEFAULT 0,       -- whether another job waits for it or is to follow it, or did
    size         INTEGER NOT NULL,                 -- bytes of the payload
    reason       TEXT,
    code         INTEGER,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    run_at       INTEGER,
    started_at   INTEGER,
    finished_at  INTEGER,
    expires_at   INTEGER,                          -- the wait clock: only on a waiting job that was never claimed
    abandon_at   INTEGER,                          -- the owner clock: only on a pending job
    purge_at     INTEGER,                          -- the keep clock: only on a job that has ended; see `jobs.py`
    worker       TEXT,
    node         TEXT,
    pid          INTEGER,
    assigned     TEXT,                             -- the tier at which it runs: only on a running job
    seconds      REAL,                             -- how long it may run at it
    waits        BLOB,                             -- ids, without tenant, of the jobs that a blocked job waits for
    terms        BLOB NOT NULL,                    -- as `encoding.pack_terms` makes them
    payload      BLOB,                             -- if small; else in the table of that name
    edits        INTEGER NOT NULL DEFAULT 0,       -- how often callers have edited it
    annotations  BLOB,                             -- MessagePack of a map; NULL = none
    identity     BLOB                              -- of a unique job: see `model/unique.py`; NULL when there is a later one
) STRICT;

CREATE UNIQUE INDEX job_id ON job (id);
CREATE UNIQUE INDEX job_identity ON job (identity) WHERE identity IS NOT NULL;
-- Every index ends with the row's own key, `seq`; so each of these is in order of arrival where all else is equal.
CREATE INDEX job_ready ON job (lane, priority) WHERE state = 2;
CREATE INDEX job_due ON job (run_at) WHERE state = 1;
CREATE INDEX job_stale ON job (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX job_owner_timeout ON job (abandon_at) WHERE abandon_at IS NOT NULL;
CREATE INDEX job_old ON job (purge_at) WHERE purge_at IS NOT NULL;
CREATE INDEX job_listing ON job (tenant_queue, state);


-- A payload too large to be rewritten whenever its job changes.
CREATE TABLE payload (
    job  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;


-- What came with a job beside its payload, what a run of it has left, and the results of its steps: those begin with when
-- the step finished (eight bytes), and come in the order of their rows.
CREATE TABLE file (
    job      INTEGER NOT NULL,
    name     TEXT NOT NULL,
    data     BLOB NOT NULL,
    from_run INTEGER NOT NULL DEFAULT 0 -- 0 it came with the job, 1 a run has left it, 2 a step of that name returned it
) STRICT;

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


-- One row for each running job, and for no other.
CREATE TABLE lease (
    job    INTEGER PRIMARY KEY,
    worker TEXT NOT NULL,
    token  BLOB NOT NULL,
    until  INTEGER NOT NULL,
    usage  BLOB                                     -- what it uses: MessagePack of `RunUsage`; NULL = not reported
) STRICT;

CREATE INDEX lease_holder ON lease (worker, token);
CREATE INDEX lease_until ON lease (until);


-- The progress of the current or last run: MessagePack of `Progress`.
CREATE TABLE progress (
    job  INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;


-- Errors, the newest hundred of each job: MessagePack of `Error`.
CREATE TABLE error (
    job  INTEGER NOT NULL,
    n    INTEGER NOT NULL, -- from 0
    data BLOB NOT NULL,
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;


-- The output of a job, the newest of it; `model/job.py` says how much is kept.
CREATE TABLE output (
    job     INTEGER NOT NULL,
    n       INTEGER NOT NULL, -- from 1, without gaps
    start   INTEGER NOT NULL, -- bytes of output before it, since the job was last queued to run again
    attempt INTEGER NOT NULL,
    stream  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    data    BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX output_place ON output (job, n);


-- Messages to a job for its current or next run; `model/job.py` says how much is kept. The first row is the last message
-- that the run has collected (number 0 if none), without its bytes.
CREATE TABLE input (
    job    INTEGER NOT NULL,
    n      INTEGER NOT NULL, -- without gaps
    finish INTEGER NOT NULL, -- bytes sent with it and before it
    data   BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX input_place ON input (job, n);


CREATE TABLE result (
    job          INTEGER PRIMARY KEY,
    spent        INTEGER NOT NULL DEFAULT 0, -- read, but the job that follows still needs it
    content_type TEXT NOT NULL,
    data         BLOB NOT NULL
) STRICT;


-- A job (child) waits for another one (parent). Both by their keys: they may be deleted before this row.
CREATE TABLE dependency (
    parent BLOB NOT NULL,
    child  BLOB NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;


-- What is to follow a job: as `encoding.pack_then` makes it.
CREATE TABLE follow_up (
    parent BLOB PRIMARY KEY,
    data   BLOB NOT NULL
) STRICT;


-- Followed jobs that have ended or were deleted, until the jobs that wait for them or follow them were processed. The rows
-- of one of these, here and in the two tables above, may outlive it.
CREATE TABLE completed_parent (
    mark   INTEGER PRIMARY KEY AUTOINCREMENT,
    id     BLOB NOT NULL,
    tenant TEXT NOT NULL,
    state  INTEGER -- NULL = it was deleted before it had ended
) STRICT;

CREATE UNIQUE INDEX completed_parent_id ON completed_parent (id);


-- Registered workers; one whose `until` has passed counts as gone.
CREATE TABLE worker (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL,
    until         INTEGER NOT NULL,
    data          BLOB NOT NULL, -- MessagePack of `NewWorker`
    memory        INTEGER,       -- bytes, as it last reported; NULL = it has not
    cpu           REAL           -- CPUs
) STRICT, WITHOUT ROWID;


-- Named records beside the jobs: settings, tokens and the like.
CREATE TABLE record (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- How many runs of a task ended with which outcome; stays when its jobs and lanes are gone.
CREATE TABLE outcome (
    tenant TEXT NOT NULL,
    queue  TEXT NOT NULL,
    task   TEXT NOT NULL,
    ok     INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    retry  INTEGER NOT NULL DEFAULT 0,
    error  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, queue, task)
) STRICT, WITHOUT ROWID;


-- The audit log: of each tenant the newest lines.
CREATE TABLE audit (
    n      INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    place  INTEGER NOT NULL, -- among the lines of its tenant, without gaps
    at     INTEGER NOT NULL,
    data   BLOB NOT NULL     -- MessagePack of `AuditLine`
) STRICT;

CREATE UNIQUE INDEX audit_place ON audit (tenant, place);
