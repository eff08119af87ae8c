-- Records how the operation ended. Waiters are notified where one has marked the row.
--
-- $1 key   $2 token   $3 expires after, ms   $4 status   $5 headers   $6 body   $7 outcome   $8 whether to notify at any rate
-- $9 in which transaction alone, as the statement that locked the row has told it; nothing where that is no matter

WITH clock AS MATERIALIZED (
  SELECT date_trunc('milliseconds', clock_timestamp()) AS now
), seen AS MATERIALIZED (
  SELECT {seen}
  FROM {table} r WHERE r.effective_key = $1
), updated AS (
  UPDATE {table} r SET
    state = 'COMPLETED', completed_at = clock.now, lease_until = clock.now + $3 * interval '1 millisecond',
    response_status = $4, response_headers = $5::jsonb, response_body = $6, outcome = $7
  FROM clock
  WHERE r.effective_key = $1 AND r.claim_token = $2 AND r.state = 'CLAIMED' AND {readable}
    AND ($9::text IS NULL OR txid_current_if_assigned()::text = $9)
  RETURNING r.waiting
), notified AS MATERIALIZED (
  SELECT pg_notify('idemkit_records', $1) FROM updated WHERE updated.waiting OR $8
)
SELECT CASE WHEN EXISTS (SELECT FROM updated) THEN 'done' END AS how, (SELECT count(*) FROM notified)::integer AS done_attempt,
  (extract(epoch FROM clock.now) * 1000)::bigint AS now_ms, NULL::bigint AS done_ms, false AS locked, seen.*
FROM clock LEFT JOIN seen ON NOT EXISTS (SELECT FROM updated)
