-- Gives the claim up.
--
-- ARGV[1]  token
--
-- Replies: applied | not_held | newer
--          odd, now, digest, fields

local now = now_ms()
local condition, record = read()

if condition == 'newer' then return { 'newer' } end
if condition == 'odd' then return odd(now) end
if condition ~= 'claimed' or record.token ~= ARGV[1] then return { 'not_held' } end

redis.call('DEL', key)
wake(record.waiter)
return { 'applied' }
