-- From format 5 to 6: a table more.

-- The audit log: of each tenant the newest lines.
CREATE TABLE audit (
    n      INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    place  INTEGER NOT NULL, -- among the lines of its tenant, without gaps
    at     INTEGER NOT NULL,
    data   BLOB NOT NULL     -- MessagePack of `AuditLine`
) STRICT;

CREATE UNIQUE INDEX audit_place ON audit (tenant, place);
