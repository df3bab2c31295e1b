"""The tables of a job's journal. SQL only; what is done with them is in `journal`."""

from __future__ import annotations

FORMAT = 5

TABLES = """
CREATE TABLE job (
    one INTEGER PRIMARY KEY CHECK (one = 1), header TEXT NOT NULL, state TEXT NOT NULL, rows INTEGER NOT NULL DEFAULT 0,
    requests INTEGER NOT NULL DEFAULT 0, elapsed REAL NOT NULL DEFAULT 0
);
CREATE TABLE batch (
    no INTEGER PRIMARY KEY, parent INTEGER, first INTEGER NOT NULL, last INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL,
    state TEXT NOT NULL, attempt INTEGER NOT NULL, sent_at REAL NOT NULL, settled_at REAL,
    created INTEGER NOT NULL DEFAULT 0, updated INTEGER NOT NULL DEFAULT 0, reason TEXT
);
CREATE TABLE row (ordinal INTEGER PRIMARY KEY, batch INTEGER, state TEXT, record_id TEXT, created_id TEXT, error TEXT);
CREATE INDEX row_state ON row (state) WHERE state IS NOT NULL;
CREATE TABLE event (at REAL NOT NULL, kind TEXT NOT NULL, batch INTEGER, note TEXT);
CREATE TABLE doubted (ordinal INTEGER PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE duplicate (ordinal INTEGER NOT NULL, record_id TEXT NOT NULL, PRIMARY KEY (ordinal, record_id));
CREATE TABLE target (ordinal INTEGER PRIMARY KEY, record_id TEXT NOT NULL);
CREATE TABLE before (ordinal INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE rival (ordinal INTEGER NOT NULL, record_id TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (ordinal, record_id)) WITHOUT ROWID;
CREATE TABLE undone (record_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE VIEW doubtful AS SELECT * FROM batch WHERE state IN ('SENDING', 'IN_DOUBT', 'UNKNOWN');
CREATE VIEW taken AS
    SELECT ordinal FROM row LEFT JOIN batch ON batch.no = row.batch
    WHERE row.state IS NOT NULL OR batch.state IS NULL OR batch.state NOT IN ('PLANNED', 'BISECT');
"""
"""`doubtful`: batches that may or may not be in the service; their `size` counts the rows that hang on them. `taken`: rows that must not be
sent. `doubted`: rows that were ever in doubt, and when last. `duplicate`: second records of a row. `target`: records that rows
update, found by key. `before`: what the attributes that a row writes held before, where that is kept. `rival`: all records with the key
of a row, where there are several. `undone`: records that were deleted or put back. `fact`: JSON values by name.
"""
