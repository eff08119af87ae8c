-- Deletes rows that nobody needs any more, each by its own time. Locked ones are somebody's.
--
-- $1 how long after its lease or its expiry, ms   $2 how many at most

DELETE FROM {table} r WHERE r.effective_key = ANY (ARRAY(
  SELECT d.effective_key FROM {table} d
  -- A time that is asked for once can be looked up in the index; one that changes from row to row cannot.
  WHERE d.lease_until < (SELECT clock_timestamp() - $1 * interval '1 millisecond')
  ORDER BY d.lease_until LIMIT $2 FOR UPDATE SKIP LOCKED
))
