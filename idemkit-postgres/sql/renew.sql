-- Prolongs the lease, and never lowers it.
--
-- $1 key   $2 token   $3 lease, ms

WITH clock AS MATERIALIZED (
  SELECT date_trunc('milliseconds', clock_timestamp()) AS now
), seen AS MATERIALIZED (
  SELECT {seen}
  FROM {table} r WHERE r.effective_key = $1
), updated AS (
  UPDATE {table} r SET lease_until = greatest(r.lease_until, clock.now + $3 * interval '1 millisecond')
  FROM clock
  WHERE r.effective_key = $1 AND r.claim_token = $2 AND r.state = 'CLAIMED' AND {readable}
  RETURNING floor(extract(epoch FROM r.lease_until) * 1000)::bigint AS until_ms
)
SELECT CASE WHEN updated.until_ms IS NOT NULL THEN 'done' END AS how, NULL::integer AS done_attempt,
  (extract(epoch FROM clock.now) * 1000)::bigint AS now_ms, updated.until_ms AS done_ms, false AS locked, seen.*
FROM clock LEFT JOIN updated ON true LEFT JOIN seen ON updated.until_ms IS NULL
