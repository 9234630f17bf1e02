-- Keep one new job without a group that waits for nothing and brings nothing along: what a lone enqueue mostly is, in as few steps as will do.
-- If a worker waits for such a job and nothing else does, it is leased to it at once.
-- ARGV[2..]  as for add.lua, of one job
-- Output     as for add.lua; or 0 if its queue is bounded
local line, meta, body = ARGV[5], ARGV[7], ARGV[8]
local id = string.sub(meta, 1, 16)
local priority, flags, keep, _, _, _, terms_size = struct.unpack('>iBdi8i8i8I', meta, 17)
local tenant, queue = string.match(line, '^([^,]*),(.*)$')
local grouping = redis.call('HMGET', K .. ':flow', '#', queue, '*')
if grouping[2] or grouping[3] then return 0 end
if (grouping[1] or '0') ~= ARGV[2] then return refuse_rules() end
local route = string.sub(body, 1, string.find(body, '\0', 1, true) - 1)
local pos, seq = redis.call('HINCRBY', K .. ':pos', line, '1'), redis.call('INCR', K .. ':seq')
local head = struct.pack(HEAD, 1, QUEUED, 0, flags, 0, 0, 0, now, 0, 0, terms_size, priority, seq, pos, now, keep)
if not redis.call('SET', K .. 'j' .. id, head .. body, 'NX') then return { 0 } end

local chunk = tostring(chunk_of(pos))
redis.call('HSET', log_key(line, PENDING, chunk), place_of(pos), id)
if redis.call('ZADD', K .. ':chunks:' .. line, chunk, chunk) == 1 then
  redis.call('ZADD', K .. ':lines', '0', line)
  redis.call('SADD', K .. ':tenants', tenant)
end
local task = string.sub(route, #line + 2)

local function count(state) redis.call('HINCRBY', K .. ':counts:' .. tenant, queue .. ',' .. task .. ',' .. state, '1') end

-- The first that waits in its lane: while there is one, no wish would suit this job.
local top = redis.call('HGET', K .. ':tops', route)
local wish = not top and grant({ id = id, tenant = tenant, queue = queue, task = task }, head .. body)
if wish then
  local whose = struct.pack('>sss', route, wish.worker, wish.node)
  redis.call('HSET', K .. ':runs', id, live_of(beginning_of(wish.nonce), head, whose))
  redis.call('ZADD', K .. ':leases', stamp(now + wish.lease), id)
  redis.call('HINCRBY', K .. ':held', wish.worker, '1')
  remember(memory_of(wish.worker, wish.nonce, wish.first), id)
  count(RUNNING)
  return { 1 }
end

count(QUEUED)
local ready = K .. ':ready:' .. route
redis.call('ZADD', ready, stamp(priority), member(seq, id))
local is_first = not top or priority < tonumber(string.match(top, '^[^ ]*'))
if is_first and lift(ready, K .. ':heads:' .. line, route) then
  lift(K .. ':heads:' .. line, K .. ':heads:' .. queue, line)
end
publish('work/' .. queue)
return { 1 }
