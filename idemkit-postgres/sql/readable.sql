(r.schema_version IS NULL OR r.schema_version = 1) AND r.body_encoding IS NULL
    AND r.claim_token ~ '^[0-9a-f]{32}$' AND r.fingerprint ~ '^[0-9a-f]{64}$'
    AND r.fingerprint_version >= 0 AND isfinite(r.lease_until) AND (r.state <> 'CLAIMED' OR r.attempt >= 1)
