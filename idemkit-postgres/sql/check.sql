-- What is looked at once, before the first operation.

SELECT (SELECT max(version) FROM {versions}) AS version, pg_is_in_recovery() AS standby,
  current_setting('synchronous_commit') AS synchronous_commit
