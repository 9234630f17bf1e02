-- Keep one new job without a group that waits for nothing and brings nothing along: what a lone enqueue mostly is, in as few steps as will do.
-- If a worker waits for such a job and nothing else does, it is leased to it at once.
-- ARGV[2..]  as for add.lua, of one job
-- Output     as for add.lua; or 0 if its queue is bounded
local MOST_LOOKED_AT = '15' -- counted from 0
local MOST_BYTES = 65536 -- of a job that a notice carries: a server cuts off whoever does not read long ones in time

local line, meta, body = ARGV[5], ARGV[7], ARGV[8]
local priority, flags, keep, _, _, _, terms_size = struct.unpack('>iBdi8i8i8I', meta, 17)
local tenant, queue = string.match(line, '^([^,]*),(.*)$')
local id = id_of(meta)
if tenant ~= DEFAULT_TENANT then id = id .. tenant end
local grouping = redis.call('HMGET', K .. ':flow', '#', queue, '*')
if grouping[2] or grouping[3] then return 0 end
if (grouping[1] or '0') ~= ARGV[2] then return refuse_rules() end
local route = string.sub(body, 1, string.find(body, '\0', 1, true) - 1)
local task = string.sub(route, #line + 2)
local pos, seq = redis.call('HINCRBY', K .. ':pos', line, '1'), redis.call('INCR', K .. ':seq')
local value = struct.pack(HEAD, 1, QUEUED, 0, flags, 0, 0, 0, now, 0, 0, terms_size, priority, seq, pos, now, keep) .. body
if not redis.call('SET', K .. 'j' .. id, value, 'NX') then return { 0 } end

local chunk = tostring(chunk_of(pos))
redis.call('HSET', log_key(line, PENDING, chunk), place_of(pos), id)
if redis.call('ZADD', K .. ':chunks:' .. line, chunk, chunk) == 1 then
  redis.call('ZADD', K .. ':lines', '0', line)
  redis.call('SADD', K .. ':tenants', tenant)
end

-- The first wish that this job suits while nothing else waits that might come before it, and whose owner hears that it is granted: else the
-- job would wait for a lease to run out.
local wishes = K .. ':wishes:' .. queue
local waiting = #value <= MOST_BYTES and redis.call('ZRANGE', wishes, '0', MOST_LOOKED_AT, 'WITHSCORES') or {}
for i = 1, #waiting, 2 do
  local nonce = waiting[i]
  local wish = tonumber(waiting[i + 1]) > now and redis.call('GET', K .. ':wish:' .. nonce)
  if not wish then
    redis.call('ZREM', wishes, nonce)
  else
    local lease, whose, worker, node, tasks, queues = struct.unpack(WISH, wish)
    local is_meant = whose == '-' or whose == tenant
    local is_known = tasks == '' or string.find(tasks, ',' .. task .. ',', 1, true)
      or string.find(tasks, ',' .. tenant .. '/' .. task .. ',', 1, true)
    if is_meant and is_known then
      local lines, heads = K .. (whose == '-' and ':heads:' or ':heads:' .. whose .. ','), {}
      for name in string.gmatch(queues, '[^,]+') do heads[#heads + 1] = lines .. name end
      if redis.call('EXISTS', unpack(heads)) == 0 then
        redis.call('ZREM', wishes, nonce)
        if publish('wish/' .. worker, struct.pack('>c8I8', nonce, now) .. id_of(meta) .. value) > 0 then
          redis.call('DEL', K .. ':wish:' .. nonce)
          redis.call('HSET', K .. ':runs', id, live_of(beginning_of(nonce), value, struct.pack('>sss', route, worker, node)))
          redis.call('ZADD', K .. ':leases', stamp(now + lease), id)
          redis.call('HINCRBY', K .. ':held', worker, '1')
          remember(memory_of(worker, nonce, string.match(queues, '[^,]+')), sized(id))
          redis.call('HINCRBY', K .. ':counts:' .. tenant, queue .. ',' .. task .. ',' .. RUNNING, '1')
          return { 1 }
        end
      end
    end
  end
end

redis.call('HINCRBY', K .. ':counts:' .. tenant, queue .. ',' .. task .. ',' .. QUEUED, '1')
local top = redis.call('HGET', K .. ':tops', route)
local ready = K .. ':ready:' .. route
redis.call('ZADD', ready, stamp(priority), member(seq, id))
local is_first = not top or priority < tonumber(string.match(top, '^[^ ]*'))
if is_first and lift(ready, K .. ':heads:' .. line, route) then
  lift(K .. ':heads:' .. line, K .. ':heads:' .. queue, line)
end
publish('work/' .. queue)
return { 1 }
