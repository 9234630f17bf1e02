-- From format 6 to 7: a table more.

-- The latest time of the store and what the host's clock showed then, noted every few seconds: see `transaction.py`.
CREATE TABLE clock (
    latest INTEGER NOT NULL,
    host   INTEGER NOT NULL
) STRICT;

INSERT INTO clock (latest, host) VALUES (0, 0);
