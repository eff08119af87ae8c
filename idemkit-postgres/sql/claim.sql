-- Asks for the right to execute, in one statement.
--
-- $1 key   $2 token   $3 fingerprint   $4 its version   $5 lease, ms   $6 take-over margin, ms
-- $7 whether the fingerprint's version can equal another
--
-- A row that is live or completed is only read: no lock, no new version. One that can be taken is locked first, and
-- skipped where another has it locked: its holder's transaction, or a claim that is faster. A row that was committed after
-- this statement's snapshot is neither seen nor inserted: then nothing is returned but the time, and the client asks again.

WITH clock AS MATERIALIZED (
  SELECT date_trunc('milliseconds', clock_timestamp()) AS now
), seen AS MATERIALIZED (
  SELECT {seen}
  FROM {table} r WHERE r.effective_key = $1
), target AS MATERIALIZED (
  SELECT r.effective_key, r.claim_token = $2 AND r.state = 'CLAIMED' AS own, r.state = 'COMPLETED' AS expired
  FROM {table} r, clock
  WHERE r.effective_key = $1 AND r.lease_until <= clock.now AND {readable}
    AND (r.state = 'COMPLETED' AND coalesce(r.outcome IN ('result', 'error', 'unavailable'), true)
        AND (r.outcome = 'unavailable' OR r.response_status BETWEEN 0 AND 65535)
      OR (r.state = 'CLAIMED' AND (r.claim_token = $2
        OR ($7 AND r.fingerprint = $3 AND r.fingerprint_version = $4
          AND r.lease_until + $6 * interval '1 millisecond' <= clock.now))))
  FOR UPDATE OF r SKIP LOCKED
), updated AS (
  UPDATE {table} r SET
    state = 'CLAIMED', claim_token = $2,
    fingerprint = CASE WHEN target.own THEN r.fingerprint ELSE $3 END,
    fingerprint_version = CASE WHEN target.own THEN r.fingerprint_version ELSE $4 END,
    attempt = CASE WHEN target.expired THEN 1 WHEN target.own THEN r.attempt
      WHEN r.attempt < 2147483647 THEN r.attempt + 1 ELSE r.attempt END,
    claimed_at = CASE WHEN target.own THEN r.claimed_at ELSE clock.now END,
    lease_until = clock.now + $5 * interval '1 millisecond',
    completed_at = NULL, response_status = NULL, response_headers = NULL, response_body = NULL, outcome = NULL,
    waiting = r.waiting AND NOT target.expired
  FROM target, clock
  WHERE r.effective_key = target.effective_key
  RETURNING r.attempt, CASE WHEN target.expired THEN 'fresh' WHEN target.own THEN 'again' ELSE 'reclaimed' END AS how
), inserted AS (
  INSERT INTO {table} (effective_key, state, fingerprint, fingerprint_version, claim_token, attempt, claimed_at, lease_until)
  SELECT $1, 'CLAIMED', $3, $4, $2, 1, clock.now, clock.now + $5 * interval '1 millisecond'
  FROM clock WHERE NOT EXISTS (SELECT FROM seen)
  ON CONFLICT (effective_key) DO NOTHING
  RETURNING attempt, 'fresh' AS how
), done AS (
  SELECT * FROM updated UNION ALL SELECT * FROM inserted
)
SELECT done.how, done.attempt AS done_attempt, (extract(epoch FROM clock.now) * 1000)::bigint AS now_ms, NULL::bigint AS done_ms,
  false AS locked, seen.*
FROM clock LEFT JOIN done ON true LEFT JOIN seen ON done.how IS NULL
