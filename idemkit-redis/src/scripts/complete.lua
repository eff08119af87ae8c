-- Records how the operation ended.
--
-- ARGV[1]  token    ARGV[2]  expires after, ms
-- ARGV[3]  1 to write the record anew where it is the caller's own completion
-- ARGV[4…] the fields of the outcome, and their values
--
-- Replies: applied | fenced | newer
--          odd, now, digest, fields

local expires_after = tonumber(ARGV[2])
local now = now_ms()
local condition, record = read()

if condition == 'absent' then return { 'fenced' } end
if condition == 'newer' then return { 'newer' } end
if condition == 'odd' then return odd(now) end
if record.token ~= ARGV[1] then return { 'fenced' } end

if condition == 'completed' then
  if record.lease_until <= now then return { 'fenced' } end
  if ARGV[3] == '1' then redis.call('HSET', key, 'claim_token', ARGV[1]) end
  return { 'applied' }
end

redis.call('HDEL', key, 'attempt', 'claimed_at', 'waiter', 'outcome', 'response_status', 'response_headers',
  'response_body')
redis.call('HSET', key, 'state', 'COMPLETED', 'completed_at', text(now), 'lease_until', text(now + expires_after))
for at = 4, #ARGV, 2 do redis.call('HSET', key, ARGV[at], ARGV[at + 1]) end
redis.call('PEXPIRE', key, text(expires_after))
wake(record.waiter)
return { 'applied' }
