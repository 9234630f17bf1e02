-- From format 4 to 5: other names, the same contents. No row of a job is rewritten.

ALTER TABLE line RENAME TO tenant_queue;
ALTER TABLE edge RENAME TO dependency;
ALTER TABLE sequel RENAME TO follow_up;
ALTER TABLE ripe RENAME TO completed_parent;

ALTER TABLE job RENAME COLUMN line TO tenant_queue;
ALTER TABLE turn RENAME COLUMN line TO tenant_queue;
ALTER TABLE lane RENAME COLUMN line TO tenant_queue;
ALTER TABLE lane RENAME COLUMN bounds TO limit_keys;
ALTER TABLE lane RENAME COLUMN parked TO blocker;
ALTER TABLE lane RENAME COLUMN shut TO paused_until;
ALTER TABLE bucket RENAME COLUMN stirred TO dirty;
ALTER TABLE rules RENAME COLUMN edition TO version;

-- An index cannot be renamed; these have a row for each tenant's queue, lane, bucket or completed parent at most.
DROP INDEX line_name;
DROP INDEX line_queue;
DROP INDEX line_turn;
DROP INDEX line_first;
CREATE UNIQUE INDEX tenant_queue_name ON tenant_queue (tenant, queue);
CREATE INDEX tenant_queue_queue ON tenant_queue (queue, tenant);
CREATE INDEX tenant_queue_turn ON tenant_queue (queue, start, arrival) WHERE arrival IS NOT NULL;
CREATE INDEX tenant_queue_first ON tenant_queue (queue, priority, arrival) WHERE arrival IS NOT NULL;

DROP INDEX lane_of_line;
DROP INDEX lane_parked;
DROP INDEX lane_shut;
DROP INDEX lane_held_up;
CREATE INDEX lane_of_tenant_queue ON lane (tenant_queue, priority, arrival)
    WHERE arrival IS NOT NULL AND blocker IS NULL AND paused_until IS NULL AND turns < 2;
CREATE INDEX lane_blocked ON lane (blocker, priority, arrival)
    WHERE arrival IS NOT NULL AND blocker IS NOT NULL AND paused_until IS NULL;
CREATE INDEX lane_paused ON lane (paused_until) WHERE paused_until IS NOT NULL;
CREATE INDEX lane_not_open ON lane (queue, tenant_queue)
    WHERE arrival IS NOT NULL AND (blocker IS NOT NULL OR paused_until IS NOT NULL);

DROP INDEX bucket_stirred;
CREATE INDEX bucket_dirty ON bucket (name) WHERE dirty;

DROP INDEX ripe_id;
CREATE UNIQUE INDEX completed_parent_id ON completed_parent (id);
