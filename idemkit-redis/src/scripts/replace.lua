-- Writes what the client has decided, if the key still holds what it has seen: a compare-and-set.
--
-- ARGV[1]  digest of what was seen    ARGV[2]  how long the key is kept, ms; empty to delete it
-- ARGV[3…] the fields of the record, and their values
--
-- Replies: 1 where it was written, 0 where something else is there by now

if redis.call('DUMP', key) ~= ARGV[1] then return 0 end
local is_hash = redis.call('TYPE', key).ok == 'hash'
local waiter = is_hash and redis.call('HGET', key, 'waiter')
if not is_hash or ARGV[2] == '' then
  redis.call('DEL', key)
else
  -- Fields that are not ours stay.
  redis.call('HDEL', key, unpack(FIELDS))
end
if ARGV[2] ~= '' then
  for at = 3, #ARGV, 2 do redis.call('HSET', key, ARGV[at], ARGV[at + 1]) end
  redis.call('PEXPIRE', key, ARGV[2])
end
wake(waiter)
return 1
