-- New jobs: add and drain. A lone job that a parked claim would take is leased to that claim in the same step.

do

local WAITS_FOR_JOBS = -90000000000000000 -- a due time below this means: the job waits for others
local MOST_PARKED = '15' -- parked claims that are looked at, counted from 0
local MOST_NOTICE = 65536 -- bytes of a job in a notice: a server cuts off a subscriber that does not read long ones in time

-- What comes with a job beside its bytes: the letters of the keys, in the order of the arguments.
local function extras_of(flags, state)
  local kinds = {}
  if flags >= EXTRAS then push(kinds, 'f') end
  if bit.band(flags, FOLLOWED) ~= 0 then push(kinds, 't') end
  if bit.band(flags, TIMED) == TIMED then push(kinds, 'h') end
  if state == BLOCKED then push(kinds, 'a') end
  return kinds
end

-- Options of a job, from its meta without id and place. Neighbours in a batch mostly share them, so they are read once.
local function read_options(meta)
  local priority, flags, keep, due, delay, expires, terms_size, tenant_queue = struct.unpack('>iBdi8i8i8IH', meta)
  if delay > 0 then due = now + delay end
  local state = SCHEDULED
  if due < WAITS_FOR_JOBS then state, due = BLOCKED, 0 elseif due <= now then state, due = QUEUED, 0 end
  if expires >= 0 then flags = flags + STALE end
  return {
    meta = meta, state = state, due = due, tenant_queue = tenant_queue, priority = tostring(priority),
    expires = expires >= 0 and stamp(now + expires),
    before_place = struct.pack('>BBBBIBBI8I8HIi', 1, state, 0, flags, 0, 0, 0, now, due, 0, terms_size, priority),
    behind_place = struct.pack('>I8d', now, keep),
    extras = (flags >= TIMED or state == BLOCKED) and extras_of(flags, state),
  }
end

-- A parked claim; nil if it was sent again or has waited long enough.
local function parked_claim(nonce, until_)
  local packed = tonumber(until_) > now and redis.call('GET', K .. ':parked_claim:' .. nonce)
  if not packed then return nil end
  local lease, tenant, worker, node, tasks, queues = struct.unpack(PARKED_CLAIM, packed)
  return { nonce = nonce, lease = lease, tenant = tenant, worker = worker, node = node, tasks = tasks, queues = queues }
end

-- Whether a claim would take a job of this tenant and task first: nothing is queued in any of the claim's queues.
local function would_take(claim, tenant, task)
  if claim.tenant ~= '-' and claim.tenant ~= tenant then return false end
  local is_known = claim.tasks == '' or string.find(claim.tasks, ',' .. task .. ',', 1, true)
    or string.find(claim.tasks, ',' .. tenant .. '/' .. task .. ',', 1, true)
  if not is_known then return false end
  local prefix, heads = K .. (claim.tenant == '-' and ':heads:' or ':heads:' .. claim.tenant .. ','), {}
  for queue in string.gmatch(claim.queues, '[^,]+') do push(heads, prefix .. queue) end
  return redis.call('EXISTS', unpack(heads)) == 0
end

-- Lease a new job to a parked claim, if its worker hears of it: else the job would wait for the lease to run out.
-- Returns: whether it does.
local function lease_to(claim, lane_name, id, value)
  local notice = struct.pack('>c8I8', claim.nonce, now) .. id_of(id) .. value
  if publish('grant/' .. claim.worker, notice) == 0 then return false end
  redis.call('DEL', K .. ':parked_claim:' .. claim.nonce)
  local live = live_of(beginning_of(claim.nonce), value, struct.pack('>sss', lane_name, claim.worker, claim.node))
  redis.call('HSET', K .. ':runs', id, live)
  redis.call('ZADD', K .. ':leases', stamp(now + claim.lease), id)
  redis.call('HINCRBY', K .. ':held', claim.worker, '1')
  remember(memory_of(claim.worker, claim.nonce, string.match(claim.queues, '[^,]+')), sized(id))
  return true
end

-- Lease a new job to the first parked claim that would take it. Returns: whether there is one.
local function grant(lane_name, tenant, queue, task, id, value)
  if #value > MOST_NOTICE then return false end
  local parked = K .. ':parked_claims:' .. queue
  local found = redis.call('ZRANGE', parked, '0', MOST_PARKED, 'WITHSCORES')
  for i = 1, #found, 2 do
    local claim = parked_claim(found[i], found[i + 1])
    if not claim then
      redis.call('ZREM', parked, found[i])
    elseif would_take(claim, tenant, task) then
      redis.call('ZREM', parked, found[i])
      if lease_to(claim, lane_name, id, value) then return true end
    end
  end
  return false
end

-- A lone plain job: it waits for nothing, brings nothing along and nothing bounds its queue. Most jobs come like this, so
-- it is written directly: gathering and `flush`, made for batches, would take twice as long.
-- Returns: { 1 } or { 0 } as `add`; or nil if the job is not plain.
local function add_lone(args)
  local tenant_queue, meta, body = args[5], args[7], args[8]
  local priority, flags, keep, due, delay, expires, terms_size = struct.unpack('>iBdi8i8i8I', meta, 17)
  if flags >= TIMED or due ~= 0 or delay > 0 or expires >= 0 then return nil end
  local lane_name = string.sub(body, 1, string.find(body, '\0', 1, true) - 1)
  local tenant, queue, task = string.match(lane_name, '^([^,]*),([^,]*),([^;]*)$')
  if not tenant then return nil end
  local found = redis.call('HMGET', K .. ':flow', '#', queue, '*')
  if found[2] or found[3] then return nil end
  if (found[1] or '0') ~= args[2] then return refuse_epoch() end

  local id = key_of(id_of(meta), tenant)
  local pos, seq = redis.call('HINCRBY', K .. ':pos', tenant_queue, '1'), redis.call('INCR', K .. ':seq')
  local value = struct.pack(HEAD, 1, QUEUED, 0, flags, 0, 0, 0, now, 0, 0, terms_size, priority, seq, pos, now, keep) .. body
  if not redis.call('SET', K .. 'j' .. id, value, 'NX') then return { 0 } end
  local chunk = tostring(chunk_of(pos))
  redis.call('HSET', log_key(tenant_queue, PENDING, chunk), place_of(pos), id)
  if redis.call('ZADD', K .. ':chunks:' .. tenant_queue, chunk, chunk) == 1 then
    redis.call('ZADD', K .. ':tenant_queues', '0', tenant_queue)
    redis.call('SADD', K .. ':tenants', tenant)
  end
  if grant(lane_name, tenant, queue, task, id, value) then
    redis.call('HINCRBY', K .. ':counts:' .. tenant, queue .. ',' .. task .. ',' .. RUNNING, '1')
    return { 1 }
  end
  redis.call('HINCRBY', K .. ':counts:' .. tenant, queue .. ',' .. task .. ',' .. QUEUED, '1')
  local ready, top = K .. ':ready:' .. lane_name, redis.call('HGET', K .. ':tops', lane_name)
  redis.call('ZADD', ready, stamp(priority), member(seq, id))
  local is_first = not top or priority < tonumber(string.match(top, '^[^ ]*'))
  if is_first and lift(ready, K .. ':heads:' .. tenant_queue, lane_name) then
    lift(K .. ':heads:' .. tenant_queue, K .. ':heads:' .. queue, tenant_queue)
  end
  publish('work/' .. queue)
  return { 1 }
end

local function store_extras(id, kinds, args, at)
  for n, kind in ipairs(kinds) do redis.call('SET', K .. kind .. id, args[at + n - 1]) end
end

-- Read the tenant queues of a batch and give out places in them. Returns: these, where the jobs begin, the number of jobs,
-- and the epoch of the limit keys in force.
local function open_tenant_queues(args)
  local tenant_queues, at, jobs, fields = {}, 5, 0, { '#', '*' }
  for i = 1, tonumber(args[4]) do
    local name, number = args[at], tonumber(args[at + 1])
    local tenant, queue = string.match(name, '^([^,]*),(.*)$')
    tenant_queues[i] = { name = name, tenant = tenant, queue = queue, number = number, new = {} }
    fields[i + 2] = queue
    at, jobs = at + 2, jobs + number
  end
  local found = redis.call('HMGET', K .. ':flow', unpack(fields))
  for i, tenant_queue in ipairs(tenant_queues) do
    local own, every = found[i + 2], found[2]
    modes[tenant_queue.queue] = (own or every) and (own or '') .. (every or '') or false
  end
  return tenant_queues, at, jobs, found[1] or '0'
end

-- Unique jobs

-- What becomes of a second one. 1 = it replaces the first, or is rejected if that has started.
local JOIN, REJECT, REPLACE_OR_JOIN = 0, 2, 3
local NO_IDENTITY = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
-- The last job of an identity, if it keeps a new one off; nil if there is none.
local function other_of(identity, time)
  local id = redis.call('HGET', K .. ':unique', identity)
  local job = id and load(id)
  return job and keeps_off(job, time) and { id = id, state = job[STATE], job = job } or nil
end

-- Decide on unique jobs, before anything is written. `packed`: of each its identity (NO_IDENTITY = it is a plain one), what
-- becomes of it if there is another ('B'), for how long there is one (us, or WHILE_…), and its id after its length.
-- Returns: `ids` (by number; false = it is not stored), `answers` (false = as the batch says), which are `plain`, the
-- `replaced` jobs, and `last`, the id by identity; or, as one string, the state and id of the job for which one was rejected,
-- after the number of that one.
local function settle(packed)
  local found, own, new, at = { ids = {}, answers = {}, plain = {}, replaced = {}, last = {} }, {}, {}, 1
  while at <= #packed do
    local i, identity, second, time, id = #found.ids + 1, nil, nil, nil, nil
    identity, second, time, id, at = struct.unpack('>c16Bi8Bc0', packed, at)
    found.plain[i] = identity == NO_IDENTITY
    local other = not found.plain[i] and (new[identity] or other_of(identity, time))
    local is_waiting = other and other.state < RUNNING
    if found.plain[i] then
      own[id], found.ids[i], found.answers[i] = true, id, false
    elseif own[id] or redis.call('EXISTS', K .. 'j' .. id) == 1 then
      found.ids[i], found.answers[i] = false, 0
    elseif not other then
      own[id], new[identity] = true, { id = id, state = QUEUED, number = i }
      found.ids[i], found.answers[i], found.last[identity] = id, 1, id
    elseif second == JOIN or second == REPLACE_OR_JOIN and not is_waiting then
      found.ids[i], found.answers[i] = false, id_of(other.id)
    elseif second ~= REJECT and is_waiting then
      if other.job then push(found.replaced, other.job) else found.ids[other.number] = false end
      new[identity] = { id = other.id, state = QUEUED, number = i }
      found.ids[i], found.answers[i], found.last[identity] = other.id, '+' .. id_of(other.id), other.id
    else
      return struct.pack('>IB', i, other.state) .. id_of(other.id)
    end
  end
  return found
end

-- Drop jobs that are replaced. What waits for them goes on to wait.
local function make_way(jobs)
  for _, job in ipairs(jobs) do
    leave(job)
    if has(job, FOLLOWED) then
      unmark(job, FOLLOWED)
      push(deleted_keys, K .. 'k' .. job.id)
      if not redis.call('ZSCORE', K .. ':completed', id_of(job.id) .. job.lane.tenant) then push(deleted_keys, K .. 't' .. job.id) end
    end
    push(in_(removed, ':owner_timeouts'), job.id)
    vanish(job, job[STATE])
  end
  flush()
  flow.end_rounds()
end

-- Note what unique jobs are known by, once they are stored.
local function note_unique(unique)
  for identity, id in pairs(unique.last) do
    local before = redis.call('HGET', K .. ':unique', identity)
    if before then redis.call('HDEL', K .. ':identities', before) end
    redis.call('HSET', K .. ':unique', identity, id)
    redis.call('HSET', K .. ':identities', id, identity)
  end
  for _, job in ipairs(unique.replaced) do
    if redis.call('EXISTS', K .. 'c' .. job.id) == 1 then
      local flags = string.byte(redis.call('GETRANGE', job.key, '3', '3'))
      redis.call('SETRANGE', job.key, '3', string.char(bit.bor(flags, FOLLOWED)))
    end
  end
end

-- `unique`: what `settle` has decided, if the jobs are unique.
local function add_batch(args, unique)
  local tenant_queues, at, jobs, epoch = open_tenant_queues(args)
  if epoch ~= args[2] then return refuse_epoch() end
  if unique and unique.replaced[1] then make_way(unique.replaced) end
  for _, one in ipairs(tenant_queues) do one.base = redis.call('HINCRBY', K .. ':pos', one.name, one.number) - one.number + 1 end
  local seq = redis.call('INCRBY', K .. ':seq', jobs) - jobs
  local owner_clocks = {}
  for i = 1, #args[3], 12 do
    local number, span = struct.unpack('>Ii8', args[3], i)
    owner_clocks[number] = span
  end

  local created, notify, options = {}, {}, { meta = '' }
  local lane_name, lane, tenant_queue, chunk, listed = '', nil, nil, nil, nil
  for i = 1, jobs do
    local meta, body = args[at], args[at + 1]
    at = at + 2
    local shared = string.sub(meta, 17, -5)
    if shared ~= options.meta then
      options = read_options(shared)
      tenant_queue, lane_name = tenant_queues[options.tenant_queue + 1], ''
    end
    local state, extras = options.state, options.extras
    local id = key_of(id_of(meta), tenant_queue.tenant)
    local seq8, pos = struct.pack('>I8', seq + i), tenant_queue.base + struct.unpack('>I', meta, 60)
    local value = options.before_place .. seq8 .. struct.pack('>I8', pos) .. options.behind_place .. body
    if unique and not unique.plain[i] then id, value = unique.ids[i], string.char(UNIQUE) .. string.sub(value, 2) end
    if id and redis.call('SET', K .. 'j' .. id, value, 'NX') then
      created[i] = 1
      if extras then store_extras(id, extras, args, at) end
      if lane_name == '' or string.sub(body, 1, #lane_name) ~= lane_name then
        lane_name = string.sub(body, 1, string.find(body, '\0', 1, true))
        lane, chunk = lane_of(string.sub(lane_name, 1, -2)), nil
      end
      if chunk ~= chunk_of(pos) then
        chunk = chunk_of(pos)
        listed = in_(in_(in_(lane, 'into'), PENDING), chunk)
        tenant_queue.new[chunk] = true
      end
      push(listed, place_of(pos), id)
      if options.expires then push(in_(added, ':stale'), options.expires, id) end
      if owner_clocks[i] then push(in_(added, ':owner_timeouts'), stamp(now + owner_clocks[i]), id) end
      if state ~= QUEUED then
        enter_as(lane, state, id, options.priority, seq + i, state == BLOCKED and pos or options.due)
      else
        lane.counts[QUEUED] = (lane.counts[QUEUED] or 0) + 1
        push(in_(lane, 'ready'), options.priority, seq8 .. id)
        notify[lane.queue] = true
      end
    else
      created[i] = 0
    end
    if extras then at = at + #extras end
  end

  for _, one in ipairs(tenant_queues) do
    for new in pairs(one.new) do
      new = tostring(new)
      if redis.call('ZADD', K .. ':chunks:' .. one.name, new, new) == 1 then
        redis.call('ZADD', K .. ':tenant_queues', '0', one.name)
        redis.call('SADD', K .. ':tenants', one.tenant)
      end
    end
  end
  flush()
  for queue in pairs(notify) do publish('work/' .. queue) end
  return created
end

local function add(args)
  local is_lone = args[4] == '1' and args[6] == '1' and args[3] == ''
  return is_lone and add_lone(args) or add_batch(args)
end

-- Store new jobs. One whose key exists already changes nothing.
-- args →  epoch of the limit keys; owner clocks ('' = none, else '>Ii8' per job that has one: its number from 1, us);
--         number of tenant queues; tenant queue, number of its jobs, …; then per job: meta, body; its files, the job that is
--         to follow it and how its result is kept (HOLD) if its flags say so; the ids that it waits for if it is blocked
--         meta = id (16) .. '>iBdi8i8i8IHI': priority, flags (of keep_result, EXTRAS = files), keep_success (-1 = without
--         limit), run_at (below WAITS_FOR_JOBS = blocked), delay, expires (-1 = never), size of terms, tenant queue (from
--         0), place among the batch's jobs of that tenant queue (from 0)
--         body = lane, zero byte, terms, payload
-- returns →  for each job 1 if it is new, else 0; or the error STALERULES, and nothing was stored
register('add', STORES, add)

-- Store new jobs, of some of which there is to be one at a time.
-- args →  what `settle` reads; then as for add
-- returns →  for each job 1 if it is new, 0 if its id exists, or the id of the job that there is instead, with a plus sign
--         before it if that was replaced; or, if one was rejected and nothing was stored, a string: its number, and the state
--         and id of the job for which it was rejected; or the error STALERULES, as for add
register('add_unique', STORES, function(args)
  local unique, rest = settle(args[2]), { args[1] }
  if type(unique) == 'string' then return unique end
  for i = 3, #args do rest[#rest + 1] = args[i] end
  local created = add_batch(rest, unique)
  if created.err then return created end
  note_unique(unique)
  for i, answer in ipairs(unique.answers) do unique.answers[i] = answer or created[i] end
  return unique.answers
end)

-- Store new yielding jobs of one tenant queue, if a slot is free for each that is new.
-- args →  tenant queue; slots that jobs ahead of them will take; the workers as `flow.free_slots` reads them; number of
--         keys, key, …; then as for add
-- returns →  as for add; or 0: they are denied, and nothing was stored
register('admit', STORES, function(args)
  local tenant_queue, ahead = args[2], tonumber(args[3])
  local free, at = flow.free_slots(args, 4)
  local fresh, behind = 0, at + tonumber(args[at])
  for i = at + 1, behind do fresh = fresh + 1 - redis.call('EXISTS', K .. 'j' .. args[i]) end
  if fresh > 0 and free - flow.promised(tenant_queue) - ahead < fresh then return 0 end
  local rest = { args[1] }
  for i = behind + 1, #args do rest[#rest + 1] = args[i] end
  return add(rest)
end)

-- Store new jobs from a journal, if they are the ones that follow.
-- args →  as for add; then the journal, the watermark that the jobs follow on, the watermark that they lead to
-- returns →  as for add; or the watermark of the journal, as a string, if it is another one: then nothing was stored
register('drain', STORES, function(args)
  local journal, since, upto = args[#args - 2], args[#args - 1], args[#args]
  local found = redis.call('HGET', K .. ':watermarks', journal) or '0'
  if found ~= since then return found end
  local created = args[4] == '0' and {} or add(args)
  if created.err then return created end
  if upto ~= since then redis.call('HSET', K .. ':watermarks', journal, upto) end
  return created
end)

end
