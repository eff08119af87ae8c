-- Gives the claim up. Waiters are notified where one has marked the row.
--
-- $1 key   $2 token

WITH clock AS MATERIALIZED (
  SELECT date_trunc('milliseconds', clock_timestamp()) AS now
), seen AS MATERIALIZED (
  SELECT {seen}
  FROM {table} r WHERE r.effective_key = $1
), deleted AS (
  DELETE FROM {table} r
  WHERE r.effective_key = $1 AND r.claim_token = $2 AND r.state = 'CLAIMED' AND {readable}
  RETURNING r.waiting
), notified AS MATERIALIZED (
  SELECT pg_notify('idemkit_records', $1) FROM deleted WHERE deleted.waiting
)
SELECT CASE WHEN EXISTS (SELECT FROM deleted) THEN 'done' END AS how, (SELECT count(*) FROM notified)::integer AS done_attempt,
  (extract(epoch FROM clock.now) * 1000)::bigint AS now_ms, NULL::bigint AS done_ms, false AS locked, seen.*
FROM clock LEFT JOIN seen ON NOT EXISTS (SELECT FROM deleted)
