-- Reads the row for a waiter, and marks a held one, so that its end is notified. It never waits for a lock: a row that
-- another has locked is told as such, and the waiter polls.
--
-- $1 key   $2 whether to mark it

WITH clock AS MATERIALIZED (
  SELECT date_trunc('milliseconds', clock_timestamp()) AS now
), seen AS MATERIALIZED (
  SELECT r.waiting, r.lease_until, {seen}
  FROM {table} r WHERE r.effective_key = $1
), wanted AS MATERIALIZED (
  -- To be marked, or lapsed: then whether somebody has it locked is the question.
  SELECT seen.lease_until <= clock.now AS lapsed FROM seen, clock
  WHERE seen.state = 'CLAIMED' AND (($2 AND NOT seen.waiting) OR seen.lease_until <= clock.now)
), free AS MATERIALIZED (
  SELECT r.effective_key FROM {table} r
  WHERE r.effective_key = $1 AND r.state = 'CLAIMED' AND EXISTS (SELECT FROM wanted)
  FOR UPDATE OF r SKIP LOCKED
), marked AS (
  UPDATE {table} r SET waiting = true FROM free
  WHERE r.effective_key = free.effective_key AND r.state = 'CLAIMED' AND NOT r.waiting AND $2
  RETURNING 1
)
SELECT NULL::text AS how, (SELECT count(*) FROM marked)::integer AS done_attempt,
  (extract(epoch FROM clock.now) * 1000)::bigint AS now_ms, NULL::bigint AS done_ms,
  EXISTS (SELECT FROM wanted WHERE wanted.lapsed) AND NOT EXISTS (SELECT FROM free) AS locked, seen.*
FROM clock LEFT JOIN seen ON true
