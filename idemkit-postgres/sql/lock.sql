-- The first statement of a transaction that will complete the claim: nobody changes the row from here on.
--
-- $1 key
--
-- It also says which transaction this is.

SELECT txid_current()::text AS how, NULL::integer AS done_attempt,
  (extract(epoch FROM date_trunc('milliseconds', clock_timestamp())) * 1000)::bigint AS now_ms, NULL::bigint AS done_ms,
  false AS locked, {seen}
FROM {table} r WHERE r.effective_key = $1 FOR UPDATE OF r
