-- From format 7 to 8: options of jobs and rules have other names (from_7.py).

UPDATE job SET terms = with_new_names(terms) WHERE instr(terms, CAST('unattended' AS BLOB));
UPDATE follow_up SET data = with_new_names(data) WHERE instr(data, CAST('unattended' AS BLOB));
UPDATE worker SET data = with_new_names(data) WHERE instr(data, CAST('unattended' AS BLOB));
UPDATE record SET data = with_new_names(data)
    WHERE kind IN ('schedule', 'task-options') AND instr(data, CAST('unattended' AS BLOB));
UPDATE rules SET data = with_new_names(data);

DROP INDEX job_unattended;
CREATE INDEX job_owner_timeout ON job (abandon_at) WHERE abandon_at IS NOT NULL;
