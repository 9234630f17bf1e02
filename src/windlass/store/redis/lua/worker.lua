-- The records of workers, all in the first partition.
-- ARGV[2..]  'enlist', id, lease (us), tenant, record   -> 1
--            'greet', id, lease (us), tenant            -> one worker, or nothing
--            'hear', id, lease (us)                     -> 1
--            'list'                                     -> all that are alive
--            'dismiss', id                              -> 1 if it was alive, else 0
-- A worker is answered as id, tenant, record, registered_at, seen_at
local verb, id = ARGV[2], ARGV[3]
local all = K .. ':workers'

local function key(worker) return K .. ':worker:' .. worker end

local function forget(worker)
  redis.call('ZREM', all, worker)
  redis.call('DEL', key(worker))
end

for _, dead in ipairs(redis.call('ZRANGEBYSCORE', all, '-inf', now, 'LIMIT', 0, 100)) do forget(dead) end

local function alive(worker) return tonumber(redis.call('ZSCORE', all, worker) or 0) > now end

local function tell(worker, to)
  to[#to + 1] = worker
  for _, field in ipairs(redis.call('HMGET', key(worker), 'tenant', 'record', 'registered', 'seen')) do to[#to + 1] = field end
  return to
end

if verb == 'enlist' then
  redis.call('ZADD', all, now + ARGV[4], id)
  redis.call('HSET', key(id), 'tenant', ARGV[5], 'record', ARGV[6], 'registered', stamp(now), 'seen', stamp(now))
  return 1
elseif verb == 'greet' then
  if not alive(id) or redis.call('HGET', key(id), 'tenant') ~= ARGV[5] then return {} end
  redis.call('ZADD', all, now + ARGV[4], id)
  redis.call('HSET', key(id), 'seen', stamp(now))
  return tell(id, {})
elseif verb == 'hear' then
  hear(id, tonumber(ARGV[4]))
  return 1
elseif verb == 'dismiss' then
  local was = alive(id)
  forget(id)
  return was and 1 or 0
end
local out = {}
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', all, '(' .. stamp(now), '+inf')) do tell(worker, out) end
return out
