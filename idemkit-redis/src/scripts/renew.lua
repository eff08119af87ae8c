-- Prolongs the lease.
--
-- ARGV[1]  token    ARGV[2]  lease, ms    ARGV[3]  take-over margin and grace, ms
--
-- Replies: renewed, ms left | completed | fenced | newer
--          odd, now, digest, fields

local lease, keep = tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local condition, record = read()

if condition == 'absent' then return { 'fenced' } end
if condition == 'newer' then return { 'newer' } end
if condition == 'odd' then return odd(now) end
if record.token ~= ARGV[1] then return { 'fenced' } end
if condition == 'completed' then return { record.lease_until <= now and 'fenced' or 'completed' } end

-- Never lowered. Written even where it stays: WAIT waits for what its connection wrote.
local lease_until = math.max(record.lease_until, now + lease)
-- First what is allowed where the memory is full: a script that has begun to write may go on, and a holder must not lapse.
redis.call('PEXPIRE', key, text(lease_until - now + keep))
redis.call('HSET', key, 'lease_until', text(lease_until))
return { 'renewed', lease_until - now }
