-- Prelude of every script: the record as far as it decodes here, and the server's clock.
--
-- KEYS[1]  the record, a hash
--
-- What does not look like a record is "odd": the client decodes all of it, and decides by the same rules.

local key = KEYS[1]

local FIELDS = {
  'state', 'fingerprint', 'fingerprint_version', 'claim_token', 'attempt', 'claimed_at', 'lease_until', 'completed_at',
  'outcome', 'response_status', 'response_headers', 'response_body', 'body_encoding', 'schema_version', 'waiter',
}

-- Milliseconds since the epoch. Rounded down: a lease is over at its very millisecond, not before it.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- As text, whole, and never in exponent form.
local function text(number)
  return string.format('%.0f', number)
end

local function is_hex(value, digits)
  return value and #value == digits and not string.find(value, '[^0-9a-f]')
end

local function is_whole(value)
  return value and #value <= 15 and string.find(value, '^%d+$')
end

-- The condition ('absent', 'claimed', 'completed', 'newer', 'odd'), and the small fields.
local function read()
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return 'absent' end
  if kind ~= 'hash' then return 'odd' end
  local field = redis.call('HMGET', key, 'state', 'fingerprint', 'fingerprint_version', 'claim_token', 'attempt',
    'lease_until', 'outcome', 'response_status', 'body_encoding', 'schema_version', 'waiter')
  local record = {
    fingerprint = field[2], fingerprint_version = field[3], token = field[4], attempt = 1, waiter = field[11],
  }
  local schema = field[10]
  if schema then
    if not is_whole(schema) then return 'odd', record end
    if tonumber(schema) > 1 then return 'newer', record end
    if tonumber(schema) ~= 1 then return 'odd', record end
  end
  -- Every encoding but plain, which is none, is unknown to this version.
  if field[9] then return 'newer', record end
  if not (is_hex(field[2], 64) and is_whole(field[3]) and is_hex(field[4], 32) and is_whole(field[6])) then
    return 'odd', record
  end
  record.lease_until = tonumber(field[6])
  if field[1] == 'CLAIMED' then
    if field[5] then
      if not is_whole(field[5]) or tonumber(field[5]) < 1 then return 'odd', record end
      record.attempt = math.min(tonumber(field[5]), 2147483647)
    end
    return 'claimed', record
  end
  if field[1] ~= 'COMPLETED' then return 'odd', record end
  local outcome = field[7] or 'result'
  if outcome == 'result' or outcome == 'error' then
    if not is_whole(field[8]) or tonumber(field[8]) > 65535 then return 'odd', record end
  elseif outcome ~= 'unavailable' then
    return 'odd', record
  end
  return 'completed', record
end

-- All that is there, for the client to decide, and a digest of it to write only over that.
local function odd(now)
  local seen = redis.call('DUMP', key)
  if not seen then return { 'odd', now } end
  if redis.call('TYPE', key).ok ~= 'hash' then return { 'odd', now, seen } end
  return { 'odd', now, seen, redis.call('HGETALL', key) }
end

-- The fields of a completed record, raw: whatever their size, nothing is decoded here.
local function completed(now)
  return { 'completed', now, redis.call('HMGET', key, 'fingerprint', 'fingerprint_version', 'claim_token',
    'completed_at', 'lease_until', 'outcome', 'response_status', 'response_headers', 'response_body') }
end

-- Wakes waiters, if one has marked the record, in the way that it listens. Where this user may not publish, or the server has no
-- such command, they poll: what was written before must not be told as an error.
local function wake(waiter)
  if waiter == 'PUBLISH' or waiter == 'SPUBLISH' then redis.pcall(waiter, key, '') end
end
