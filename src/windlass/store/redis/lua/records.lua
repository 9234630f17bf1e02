-- Records that are not jobs: workers, records with compare-and-swap, the audit log, uploaded files. All of them are in the
-- first partition.

do

local function worker_key(worker) return K .. ':worker:' .. worker end

local function forget_dead_workers()
  for _, dead in ipairs(redis.call('ZRANGEBYSCORE', K .. ':workers', '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', K .. ':workers', dead)
    redis.call('DEL', worker_key(dead))
  end
end

local function is_alive(worker) return tonumber(redis.call('ZSCORE', K .. ':workers', worker) or 0) > now end

-- Add a worker to an answer: id, tenant, record, registered_at, seen_at, usage.
local function answer_worker(worker, out)
  out[#out + 1] = worker
  for _, field in ipairs(redis.call('HMGET', worker_key(worker), 'tenant', 'record', 'registered', 'seen', 'usage')) do out[#out + 1] = field end
  return out
end

-- A worker was heard of: keep its record for another lease.
-- args →  worker, lease (us; 0 = it leaves), tenant, record ('' = the one that is stored), usage (likewise)
-- returns →  the worker as `answer_worker` makes it, or nothing if that tenant has no such worker
register('worker_heartbeat', FREES_MEMORY, function(args)
  local id, tenant, record = args[2], args[4], args[5]
  local key, seen = worker_key(id), stamp(now)
  forget_dead_workers()
  if record ~= '' then
    local known = is_alive(id) and redis.call('HGET', key, 'tenant') == tenant
    redis.call('HSET', key, 'tenant', tenant, 'record', record)
    if not known then redis.call('HSET', key, 'registered', seen) end
  elseif not is_alive(id) or redis.call('HGET', key, 'tenant') ~= tenant then
    return {}
  end
  redis.call('ZADD', K .. ':workers', now + args[3], id)
  redis.call('HSET', key, 'seen', seen)
  if args[6] ~= '' then redis.call('HSET', key, 'usage', args[6]) end
  return answer_worker(id, {})
end)

-- A worker claimed in another partition.
-- args →  worker, lease (us)
register('note_seen', FREES_MEMORY, function(args)
  note_seen(args[2], tonumber(args[3]))
  return 1
end)

-- The workers that are alive.
-- returns →  each as `answer_worker` makes it
register('workers', READS, function()
  local out = {}
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', K .. ':workers', '(' .. stamp(now), '+inf')) do answer_worker(worker, out) end
  return out
end)

local function records_key(kind) return K .. ':records:' .. kind end

-- Replace a record if it is what the caller expects.
-- args →  kind, name, '1' if there should be one ('*' = it does not matter), its data, '1' if there is to be one, its data
-- returns →  1 if it was so, else 0
local function swap(args)
  local key, name = records_key(args[2]), args[3]
  if args[4] ~= '*' and redis.call('HGET', key, name) ~= (args[4] == '1' and args[5]) then return 0 end
  if args[6] == '1' then redis.call('HSET', key, name, args[7]) else redis.call('HDEL', key, name) end
  return 1
end

register('swap_record', STORES, swap)
register('drop_record', FREES_MEMORY, swap)

-- The records of a kind: all of them, or those of some names that there are.
-- args →  kind, name, …
-- returns →  name, data, …
register('records', READS, function(args)
  if #args == 2 then return redis.call('HGETALL', records_key(args[2])) end
  local out = {}
  for at = 3, #args do
    local data = redis.call('HGET', records_key(args[2]), args[at])
    if data then out[#out + 1] = args[at]; out[#out + 1] = data end
  end
  return out
end)

-- The audit log

local function audit_index(tenant) return K .. ':audit:' .. tenant end

-- Store a line of the audit log; the tenant's oldest one makes room for it.
-- args →  tenant, line, most lines of a tenant
register('add_audit_line', FREES_MEMORY, function(args)
  local tenant, most = args[2], tonumber(args[4])
  local index, n = audit_index(tenant), stamp(redis.call('INCR', K .. ':audit'))
  redis.call('HSET', K .. ':audit_lines', n, struct.pack('>I8s', now, tenant) .. args[3])
  redis.call('ZADD', index, n, n)
  redis.call('ZADD', K .. ':audit_all', n, n)
  if redis.call('ZCARD', index) > most then
    local old = redis.call('ZPOPMIN', index)[1]
    redis.call('ZREM', K .. ':audit_all', old)
    redis.call('HDEL', K .. ':audit_lines', old)
  end
  return 1
end)

-- Lines of the audit log, newest first.
-- args →  tenant ('-' = all), number before which they are, most
-- returns →  number, time, tenant, line; …
register('audit_lines', READS, function(args)
  local index = args[2] == '-' and K .. ':audit_all' or audit_index(args[2])
  local out = {}
  for _, n in ipairs(redis.call('ZREVRANGEBYSCORE', index, '(' .. args[3], '-inf', 'LIMIT', 0, args[4])) do
    local line = redis.call('HGET', K .. ':audit_lines', n)
    local time, tenant, from = struct.unpack('>I8s', line)
    push(out, n, stamp(time))
    push(out, tenant, string.sub(line, from))
  end
  return out
end)

-- Uploaded files

local MOST_EXPIRED = 100 -- files past their time that are dropped when one comes
local LEAST_SIZE = 4096 -- as which a smaller file counts, so that their number is bounded too
local AFTERWARDS = 60000 -- ms for which a key outlives the last file in it

local function upload_key(tenant, digest) return K .. ':upload:' .. tenant .. ':' .. digest end

local function forget_upload(tenant, digest)
  local sizes = K .. ':upload_sizes:' .. tenant
  redis.call('DEL', upload_key(tenant, digest))
  redis.call('ZREM', K .. ':uploads:' .. tenant, digest)
  redis.call('HINCRBY', sizes, '', '-' .. redis.call('HGET', sizes, digest))
  redis.call('HDEL', sizes, digest)
end

-- Set when a file expires. Its keys go by themselves a little later, if its tenant never comes again.
local function keep_upload(tenant, digest, us)
  redis.call('ZADD', K .. ':uploads:' .. tenant, stamp(now + us), digest)
  if not is_server_time then return end
  local ms = stamp(math.floor(us / 1000) + AFTERWARDS)
  redis.call('PEXPIRE', upload_key(tenant, digest), ms)
  redis.call('PEXPIRE', K .. ':uploads:' .. tenant, ms)
  redis.call('PEXPIRE', K .. ':upload_sizes:' .. tenant, ms)
end

-- Keep a file; those of its tenant that expire first make room for it.
-- args →  tenant, SHA-256, bytes, us for which it is kept, most bytes of the tenant's
register('upload', STORES, function(args)
  local tenant, digest, data, most = args[2], args[3], args[4], tonumber(args[6])
  local index, sizes = K .. ':uploads:' .. tenant, K .. ':upload_sizes:' .. tenant
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, MOST_EXPIRED)) do forget_upload(tenant, old) end
  if redis.call('ZSCORE', index, digest) then forget_upload(tenant, digest) end
  local size = math.max(#data, LEAST_SIZE)
  while tonumber(redis.call('HGET', sizes, '') or 0) + size > most do
    local first = redis.call('ZRANGE', index, 0, 0)[1]
    if not first then break end
    forget_upload(tenant, first)
  end
  redis.call('SET', upload_key(tenant, digest), data)
  redis.call('HSET', sizes, digest, size)
  redis.call('HINCRBY', sizes, '', size)
  keep_upload(tenant, digest, tonumber(args[5]))
  return 1
end)

-- Files that are there; each is kept for so long from now.
-- args →  tenant, us for which they are kept; SHA-256, …
-- returns →  SHA-256, bytes, …
register('uploaded', STORES, function(args)
  local tenant, out = args[2], {}
  for i = 4, #args do
    local digest = args[i]
    local data = tonumber(redis.call('ZSCORE', K .. ':uploads:' .. tenant, digest) or 0) > now
      and redis.call('GET', upload_key(tenant, digest))
    if data then
      push(out, digest, data)
      keep_upload(tenant, digest, tonumber(args[3]))
    end
  end
  return out
end)

end
