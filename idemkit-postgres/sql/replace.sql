-- Writes what the client has decided over a row that no statement could decide about, if it is still the version that was
-- seen: a compare-and-set.
--
-- $1 key   $2 row_xmin   $3 row_ctid   $4 token   $5 fingerprint   $6 its version   $7 attempt   $8 lease, ms
-- $9 now, ms since the epoch

UPDATE {table} r SET
  state = 'CLAIMED', fingerprint = $5, fingerprint_version = $6, claim_token = $4, attempt = $7,
  claimed_at = to_timestamp($9::bigint / 1000.0), lease_until = to_timestamp($9::bigint / 1000.0) + $8 * interval '1 millisecond',
  completed_at = NULL, response_status = NULL, response_headers = NULL, response_body = NULL, outcome = NULL,
  body_encoding = NULL, schema_version = NULL
WHERE r.effective_key = $1 AND r.xmin::text = $2 AND r.ctid = $3::tid
RETURNING 1
