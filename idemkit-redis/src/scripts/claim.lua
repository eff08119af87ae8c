-- Asks for the right to execute.
--
-- ARGV[1]  token              ARGV[2]  fingerprint    ARGV[3]  fingerprint version
-- ARGV[4]  lease, ms          ARGV[5]  take-over margin, ms
-- ARGV[6]  grace, ms: how much longer than lease and margin the key is kept
-- ARGV[7]  1 where the fingerprint is of a version that can equal another
-- ARGV[8]  1 to be told all that is there, since the client could not decode it
-- ARGV[9]  1 to write the record anew where it is the caller's own: WAIT waits for what its connection wrote
--
-- Replies: acquired, fresh or reclaimed, attempt, ms left
--          in_flight, fingerprint, its version, attempt, ms until a take-over
--          mismatch | newer
--          completed, now, fields
--          odd, now, digest, fields

local lease, margin, grace = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now = now_ms()
if ARGV[8] == '1' then return odd(now) end
local condition, record = read()

local function hold(kind, attempt)
  redis.call('HSET', key, 'state', 'CLAIMED', 'fingerprint', ARGV[2], 'fingerprint_version', ARGV[3],
    'claim_token', ARGV[1], 'attempt', text(attempt), 'claimed_at', text(now), 'lease_until', text(now + lease))
  redis.call('PEXPIRE', key, text(lease + margin + grace))
  return { 'acquired', kind, attempt, lease }
end

local function hold_again(left)
  if ARGV[9] == '1' then redis.call('HSET', key, 'claim_token', ARGV[1]) end
  return { 'acquired', record.attempt == 1 and 'fresh' or 'reclaimed', record.attempt, left }
end

local function in_flight()
  return { 'in_flight', record.fingerprint, record.fingerprint_version, record.attempt,
    record.lease_until + margin - now }
end

if condition == 'absent' then return hold('fresh', 1) end
if condition == 'newer' then return { 'newer' } end
if condition == 'odd' then return odd(now) end

if condition == 'completed' then
  if now < record.lease_until then return completed(now) end
  redis.call('DEL', key)
  return hold('fresh', 1)
end

local own = record.token == ARGV[1]
if now < record.lease_until then
  if own then return hold_again(record.lease_until - now) end
  return in_flight()
end
if own then
  -- As a renewal: first what is allowed where the memory is full.
  redis.call('PEXPIRE', key, text(lease + margin + grace))
  redis.call('HSET', key, 'lease_until', text(now + lease))
  return hold_again(lease)
end
-- A lapsed claim belongs to its request.
if ARGV[7] ~= '1' or record.fingerprint ~= ARGV[2] or tonumber(record.fingerprint_version) ~= tonumber(ARGV[3]) then
  return { 'mismatch' }
end
if now < record.lease_until + margin then return in_flight() end
return hold('reclaimed', math.min(record.attempt + 1, 2147483647))
