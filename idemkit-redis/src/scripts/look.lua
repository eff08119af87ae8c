-- Reads the record for a waiter, and marks a held one, so that its end is published.
--
-- ARGV[1]  take-over margin, ms    ARGV[2]  PUBLISH or SPUBLISH, by which the waiter listens; empty where it only polls
--
-- Replies: vacant | held, ms until a take-over | newer
--          completed, now, fields
--          odd, now, digest, fields

local margin = tonumber(ARGV[1])
local now = now_ms()
local condition, record = read()

if condition == 'absent' then return { 'vacant' } end
if condition == 'newer' then return { 'newer' } end
if condition == 'odd' then return odd(now) end
if condition == 'completed' then
  if record.lease_until <= now then return { 'vacant' } end
  return completed(now)
end

local left = record.lease_until + margin - now
if left <= 0 then return { 'vacant' } end
-- Where it cannot be marked, since the memory is full, say, the waiter polls.
if ARGV[2] ~= '' and record.waiter ~= ARGV[2] then redis.pcall('HSET', key, 'waiter', ARGV[2]) end
return { 'held', left }
