-- From format 3 to 4: the tenant is part of a job's key. The default tenant's keys stay as they are.
-- `||` makes a text even of bytes, hence the casts.

-- Edges and sequels first, while their parents' ids still say whose they are.
CREATE TEMP TABLE owner AS
    SELECT job.id AS id, lane.tenant AS tenant FROM job JOIN lane ON lane.id = job.lane
    WHERE lane.tenant <> 'default' AND job.followed
    UNION SELECT id, tenant FROM ripe WHERE tenant <> 'default';
CREATE INDEX temp.owner_id ON owner (id);
UPDATE edge SET parent = CAST(edge.parent || owner.tenant AS BLOB), child = CAST(edge.child || owner.tenant AS BLOB)
    FROM temp.owner WHERE owner.id = edge.parent;
UPDATE sequel SET parent = CAST(sequel.parent || owner.tenant AS BLOB) FROM temp.owner WHERE owner.id = sequel.parent;
DROP TABLE temp.owner;

DROP INDEX ripe_id;
UPDATE ripe SET id = CAST(id || tenant AS BLOB) WHERE tenant <> 'default';
CREATE UNIQUE INDEX ripe_id ON ripe (id);

DROP INDEX job_id;
UPDATE job SET id = CAST(job.id || lane.tenant AS BLOB) FROM lane WHERE lane.id = job.lane AND lane.tenant <> 'default';
CREATE UNIQUE INDEX job_id ON job (id);

-- How many runs of a task ended in which way; stays when its jobs and lanes are gone.
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
