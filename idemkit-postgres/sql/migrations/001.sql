-- Version 1: one row a key.

CREATE TABLE IF NOT EXISTS {table} (
  effective_key       text PRIMARY KEY,
  state               text NOT NULL,
  fingerprint         text NOT NULL,
  fingerprint_version integer NOT NULL,
  claim_token         text NOT NULL,
  attempt             integer NOT NULL DEFAULT 1,
  claimed_at          timestamptz,
  lease_until         timestamptz NOT NULL,
  completed_at        timestamptz,
  response_status     integer,
  response_headers    jsonb,
  response_body       bytea,
  outcome             text,
  body_encoding       text,
  schema_version      integer,
  -- Whether somebody waits: only then is a completion or a release notified.
  waiting             boolean NOT NULL DEFAULT false
) WITH (
  -- Each claim is followed by a completion, most by neither renewal nor waiter: room for one new version beside the old.
  fillfactor = 50,
  -- The usual fifth of a table that holds a day of records would be a day of dead versions. A hundredth, and soon.
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05,
  -- As fast as it can: it is small, and everybody waits for it.
  autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_scale_factor = 0.01,
  toast.autovacuum_vacuum_cost_delay = 0
);

-- For vacuum. It means that no update is heap-only, which is why the settings above matter.
CREATE INDEX IF NOT EXISTS {index} ON {table} (lease_until);
