r.state, r.fingerprint, r.fingerprint_version, r.claim_token, r.attempt,
    floor(extract(epoch FROM r.claimed_at) * 1000)::bigint AS claimed_ms,
    CASE WHEN isfinite(r.lease_until) THEN floor(extract(epoch FROM r.lease_until) * 1000)::bigint END AS until_ms,
    CASE WHEN isfinite(r.completed_at) THEN floor(extract(epoch FROM r.completed_at) * 1000)::bigint END AS completed_ms,
    r.response_status, r.response_headers::text AS response_headers, r.response_body, r.outcome, r.body_encoding,
    r.schema_version, r.xmin::text AS row_xmin, r.ctid::text AS row_ctid
