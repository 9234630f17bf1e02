-- Jobs and their indexes: reading and writing a job, moving it from state to state. What changes in the indexes is
-- gathered and written by `flush`, in few commands, at the end of a call.

local SEEN_EVERY = 1000000 -- us between two notes that a worker was heard of
local MOST_ERRORS = 100
local MOST_OUTCOMES = 40000 -- four for each of as many tasks as store/data.py allows
local RESULT_ONLY = 128 -- see `swept`

local function has(job, flag) return bit.band(job[FLAGS], flag) ~= 0 end
local function mark(job, flag) job[FLAGS] = bit.bor(job[FLAGS], flag) end
local function unmark(job, flag) job[FLAGS] = bit.band(job[FLAGS], bit.bnot(flag)) end

-- Read a job: its head by number, its run in `run`; nil if there is none. `whole` = read the payload too. `live` = its
-- entry in `runs`, if the caller has it already.
local function load(id, whole, live)
  local key = K .. 'j' .. id
  local value = whole and redis.call('GET', key) or redis.call('GETRANGE', key, '0', READ_FIRST)
  if not value or value == '' then return nil end
  -- All fields are named here so that the table has its final size at once.
  local job = { id = id, key = key, body = 0, lane = 0, text = 0, run = 0, payload = false, assigned = false, struct.unpack(HEAD, value) }
  local from, run_size = job[HEAD_FIELDS + 1], job[RUN_SIZE]
  local zero = string.find(value, '\0', from, true)
  if not zero then
    value = redis.call('GET', key)
    zero = string.find(value, '\0', from, true)
  end
  local body = zero + job[TERMS_SIZE] -- head, lane and terms end here
  if body > #value then value = redis.call('GETRANGE', key, '0', body - 1) end
  job.body = body
  job.lane = lane_of(string.sub(value, from, zero - 1))
  job.text = string.sub(value, from, body)
  if whole then job.payload = string.sub(value, body + 1, #value - run_size) end
  if run_size > 0 then
    job.run = { NO_TOKEN, struct.unpack(ENDED, whole and string.sub(value, -run_size) or redis.call('GETRANGE', key, -run_size, -1)) }
  else
    job.run = { NO_TOKEN, 0, 0, 0, 0, '', '' }
  end
  if job[STATE] == QUEUED then
    live = live or redis.call('HGET', K .. ':runs', id)
    if live then
      local run, before, lane_name, _ = job.run, 0, '', 0
      run[TOKEN], run[PID], run[STARTED], job[UPDATED], job[REASON], job[FLAGS], before, _, _, _, _, _, _, _, lane_name, run[WORKER], run[NODE] =
        struct.unpack(LIVE, live)
      job[STATE], job[ATTEMPT] = RUNNING, before + 1
      if string.find(lane_name, ';', 1, true) then job.assigned = redis.call('HGET', K .. ':assigned', id) end
    end
  end
  return job
end

-- The bytes of a job in an answer: head, lane, terms, run, and behind it the seconds and the name of its tier.
local function meta_of(job)
  local run, run_size = '', job[RUN_SIZE]
  if job.run[STARTED] > 0 or job.run[FINISHED] > 0 then run = struct.pack(RUN, unpack(job.run, 1, NODE)) .. (job.assigned or '') end
  job[RUN_SIZE] = #run
  local meta = struct.pack(HEAD, unpack(job, 1, HEAD_FIELDS)) .. job.text .. run
  job[RUN_SIZE] = run_size
  return meta
end

-- Write the run of a running job.
local function save_run(job)
  local run, lane_name = job.run, job.lane.name
  if job.assigned and not job.lane.limit_keys then lane_name = lane_name .. ';' end -- so that the end of the run sees it
  local live = struct.pack(LIVE, run[TOKEN], run[PID], run[STARTED], job[UPDATED], job[REASON], job[FLAGS], job[ATTEMPT] - 1, job[CRASHES],
    job[LOSSES], 0, job[DUE], job[RUN_SIZE], job[POS], job[KEEP], lane_name, run[WORKER], run[NODE])
  redis.call('HSET', K .. ':runs', job.id, live)
end

-- Write a job that does not run, in place but for its run, which is at the end: the payload is not written again.
local function save(job)
  local before, run = job[RUN_SIZE], ''
  if job.run[STARTED] > 0 or job.run[FINISHED] > 0 then run = struct.pack(ENDED, unpack(job.run, PID, NODE)) end
  job[RUN_SIZE] = #run
  local head = struct.pack(HEAD, unpack(job, 1, HEAD_FIELDS))
  if before == 0 or before == #run then
    redis.call('SETRANGE', job.key, '0', head)
    if before > 0 then
      redis.call('SETRANGE', job.key, redis.call('STRLEN', job.key) - before, run)
    elseif run ~= '' then
      redis.call('APPEND', job.key, run)
    end
  else
    redis.call('SET', job.key, head .. job.text .. redis.call('GETRANGE', job.key, job.body, -before - 1) .. run)
  end
end

-- Put the first job of a lane (or the first lane of a tenant queue) into the heads of the level above; whether it changed.
local function lift(own, heads, name)
  local first = redis.call('ZRANGE', own, 0, 0, 'WITHSCORES')
  local old = redis.call('HGET', K .. ':tops', name)
  local new = first[1] and string.sub(first[1], 1, 8) .. name
  local top = new and first[2] .. ' ' .. new
  if old == (top or false) then return false end
  if old then redis.call('ZREM', heads, string.sub(old, string.find(old, ' ', 1, true) + 1)) end
  if new then
    redis.call('ZADD', heads, first[2], new)
    redis.call('HSET', K .. ':tops', name, top)
  else
    redis.call('HDEL', K .. ':tops', name)
  end
  return true
end

-- Indexes

local function chunk_of(pos) return (pos - pos % CHUNK) / CHUNK end
local function place_of(pos) return string.char(pos % CHUNK) end
local function kind_of(state) return state > PENDING and state or PENDING end

-- Put a job that does not run into the index of its state. `at` = its due time, or the time at which it is dropped
-- (nil = never), or its place if it is blocked.
local function enter_as(lane, state, id, priority, seq, at)
  lane.counts[state] = (lane.counts[state] or 0) + 1
  if state == QUEUED then
    push(in_(lane, 'ready'), priority, member(seq, id))
  elseif state == SCHEDULED then
    push(in_(added, ':due'), at, id)
  elseif state == BLOCKED then
    push(in_(added, ':blocked:' .. lane.tenant_queue), at, id)
  elseif at then
    push(in_(added, ':gone'), at, id)
  end
end

local function enter(job, at)
  local state = job[STATE]
  enter_as(job.lane, state, job.id, job[PRIORITY], job[SEQ], state == SCHEDULED and job[DUE] or at)
end

local function list(lane, state, pos, id) push(in_(in_(in_(lane, 'into'), kind_of(state)), chunk_of(pos)), place_of(pos), id) end

local function unlist(lane, state, pos) push(in_(in_(in_(lane, 'out'), kind_of(state)), chunk_of(pos)), place_of(pos)) end

-- Take a job out of the index of its state.
local function leave(job)
  local lane, state = job.lane, job[STATE]
  lane.counts[state] = (lane.counts[state] or 0) - 1
  if state == QUEUED then
    push(in_(lane, 'unready'), member(job[SEQ], job.id))
  elseif state == SCHEDULED then
    push(in_(removed, ':due'), job.id)
  elseif state == BLOCKED then
    push(in_(removed, ':blocked:' .. lane.tenant_queue), job.id)
    push(deleted_keys, K .. 'a' .. job.id)
  elseif state == RUNNING then
    push(in_(removed, ':leases'), job.id)
    push(ended, job.id)
    held[job.run[WORKER]] = (held[job.run[WORKER]] or 0) - 1
    if lane.limit_keys or job.assigned then flow.give_back(job.id, lane, job.assigned) end
  elseif state >= SUCCEEDED then
    push(in_(removed, ':gone'), job.id)
  end
end

-- Move the listing of a job that is now in another state.
local function relist(job, before)
  local after = job[STATE]
  if kind_of(before) ~= kind_of(after) then
    unlist(job.lane, before, job[POS])
    list(job.lane, after, job[POS], job.id)
  end
end

local function stop_waiting(job)
  if has(job, STALE) then
    unmark(job, STALE)
    push(in_(removed, ':stale'), job.id)
  end
end

local function forget_progress(job)
  if has(job, PROGRESS) then
    unmark(job, PROGRESS)
    push(without_progress, job.id)
  end
end

-- Drop the messages to a run that has ended. Returns: the flags, without EXTRAS if nothing else needs it.
local function forget_input(id, flags)
  if flags < EXTRAS or redis.call('DEL', K .. 'i' .. id) == 0 then return flags end
  if redis.call('EXISTS', K .. 'o' .. id, K .. 'f' .. id, K .. 'g' .. id, K .. 'n' .. id, K .. 'd' .. id) > 0 then return flags end
  return flags - EXTRAS
end

-- Drop a result that was read for the only time, or kept long enough; the job that follows still gets it.
local function spend(job)
  unmark(job, RESULT)
  redis.call('SETRANGE', job.key, '3', string.char(job[FLAGS]))
  if has(job, FOLLOWED) and redis.call('ZSCORE', K .. ':completed', id_of(job.id) .. job.lane.tenant) then
    redis.call('RENAME', K .. 'r' .. job.id, K .. 'k' .. job.id)
  else
    redis.call('DEL', K .. 'r' .. job.id)
  end
end

local function refuse_epoch() return redis.error_reply('STALERULES limit keys were made under other rules') end

local WHILE_PENDING, WHILE_WAITING = -1, -2 -- in the place of the time for which there is one

-- Whether a job keeps off another one of its identity: as in `model/unique.py`.
local function keeps_off(job, time)
  local state = job[STATE]
  if time == WHILE_WAITING then return state < RUNNING end
  if time == WHILE_PENDING then return state <= RUNNING end
  return state <= SUCCEEDED and now - job[CREATED] < time
end

-- Forget what a unique job is known by, unless that is another one now.
local function forget_identity(id)
  local identity = redis.call('HGET', K .. ':identities', id)
  if not identity then return end
  redis.call('HDEL', K .. ':identities', id)
  redis.call('HDEL', K .. ':unique', identity)
end

-- Drop everything of a job that has left the index of its state `before`.
local function vanish(job, before)
  stop_waiting(job)
  forget_progress(job)
  push(deleted_keys, job.key)
  if job[KIND] == UNIQUE then forget_identity(job.id) end
  if has(job, RESULT) then push(deleted_keys, K .. 'r' .. job.id) end
  if has(job, ERRORS) then push(deleted_keys, K .. 'e' .. job.id) end
  if bit.band(job[FLAGS], TIMED) == TIMED then push(deleted_keys, K .. 'h' .. job.id) end
  if has(job, EXTRAS) then
    push(deleted_keys, K .. 'o' .. job.id, K .. 'f' .. job.id)
    push(deleted_keys, K .. 'i' .. job.id, K .. 'g' .. job.id)
    push(deleted_keys, K .. 'n' .. job.id, K .. 'd' .. job.id)
  end
  if has(job, FOLLOWED) then
    push(deleted_keys, K .. 'k' .. job.id)
    if not redis.call('ZSCORE', K .. ':completed', id_of(job.id) .. job.lane.tenant) then push(deleted_keys, K .. 'c' .. job.id, K .. 't' .. job.id) end
  end
  unlist(job.lane, before, job[POS])
  emptied[job.lane.tenant_queue .. ' ' .. chunk_of(job[POS])] = true
end

local function lift_lane(lane)
  if lane.limit_keys or mode_of(lane.queue) then
    flow.queued_changed(lane)
  elseif lift(K .. ':ready:' .. lane.name, K .. ':heads:' .. lane.tenant_queue, lane.name) then
    lift(K .. ':heads:' .. lane.tenant_queue, K .. ':heads:' .. lane.queue, lane.tenant_queue)
  end
end

local function log_key(tenant_queue, kind, chunk) return K .. ':log:' .. tenant_queue .. ':' .. kind .. ':' .. chunk end

local function send_logs(command, tenant_queue, lists)
  for kind, chunks in pairs(lists) do
    for chunk, entries in pairs(chunks) do send(command, log_key(tenant_queue, kind, chunk), entries) end
  end
end

local function bump(key, field, by)
  if by ~= 0 and redis.call('HINCRBY', key, field, tostring(by)) == 0 then redis.call('HDEL', key, field) end
end

local function flush_listing(lane)
  if lane.out then send_logs('HDEL', lane.tenant_queue, lane.out) end
  if lane.into then send_logs('HSET', lane.tenant_queue, lane.into) end
end

local function flush_counts(lane)
  for state, by in pairs(lane.counts) do
    bump(K .. ':counts:' .. lane.tenant, lane.queue .. ',' .. lane.task .. ',' .. state, by)
  end
end

local function flush_lane(lane)
  flush_listing(lane)
  flush_counts(lane)
  if lane.ready or lane.unready then
    send('ZREM', K .. ':ready:' .. lane.name, lane.unready or {}) -- first: an edit takes a job out and puts it in again
    send('ZADD', K .. ':ready:' .. lane.name, lane.ready or {})
    lift_lane(lane)
  end
end

-- Forget a chunk, tenant queue or tenant without jobs.
local function tidy(tenant_queue, chunk)
  for kind = PENDING, CANCELLED do
    if redis.call('EXISTS', log_key(tenant_queue, kind, chunk)) == 1 then return end
  end
  redis.call('ZREM', K .. ':chunks:' .. tenant_queue, chunk)
  if redis.call('EXISTS', K .. ':chunks:' .. tenant_queue) == 1 then return end
  redis.call('ZREM', K .. ':tenant_queues', tenant_queue)
  redis.call('HDEL', K .. ':pos', tenant_queue)
  local tenant = string.match(tenant_queue, '^[^,]*')
  if redis.call('EXISTS', K .. ':counts:' .. tenant) == 0 then redis.call('SREM', K .. ':tenants', tenant) end
end

local function flush_indexes()
  for index, ids in pairs(removed) do send('ZREM', K .. index, ids) end
  for index, scores in pairs(added) do send('ZADD', K .. index, scores) end
  send('HDEL', K .. ':runs', ended)
  for worker, by in pairs(held) do bump(K .. ':held', worker, by) end
  send('HDEL', K .. ':progress', without_progress)
end

-- Write everything that was gathered.
local function flush()
  for _, lane in pairs(lanes) do flush_lane(lane) end
  flush_indexes()
  for _, key in ipairs(deleted_keys) do redis.call('DEL', key) end
  flow.flush()
  for place in pairs(emptied) do tidy(string.match(place, '^(.*) (.*)$')) end
  lanes, added, removed, held, ended = cleared(lanes), cleared(added), cleared(removed), cleared(held), cleared(ended)
  deleted_keys, without_progress, emptied = cleared(deleted_keys), cleared(without_progress), cleared(emptied)
end

-- Claims

-- The first bytes of runs that begin now (see LIVE).
local function beginning_of(nonce) return struct.pack('>c8II8I8B', nonce, 0, now, now, 0) end

-- The entry in `runs` of a job with these bytes.
local function live_of(beginning, value, whose)
  return beginning .. string.sub(value, 4, 28) .. string.sub(value, 45, 52) .. string.sub(value, 61, 68) .. whose
end

local function memory_of(worker, nonce, queue) return K .. ':claim:' .. worker .. ',' .. nonce .. ',' .. queue end

-- Note what a claim took, in case it is sent again.
local function remember(memory, ids) redis.call('SET', memory, ids, 'EX', '60') end

local function sized(id) return string.char(#id) .. id end

-- Note that a worker was heard of, once per SEEN_EVERY at most. Its record is in the first partition only.
local function note_seen(worker, lease)
  local alive = tonumber(redis.call('ZSCORE', K .. ':workers', worker) or 0) > now
  if alive and now - redis.call('HGET', K .. ':worker:' .. worker, 'seen') >= SEEN_EVERY then
    redis.call('ZADD', K .. ':workers', now + lease, worker)
    redis.call('HSET', K .. ':worker:' .. worker, 'seen', string.format('%.0f', now))
  end
end

-- Count how runs of a lane ended. A task beyond MOST_OUTCOMES is not counted.
local function note_outcome(lane, how, by)
  local key, field = K .. ':outcomes:' .. lane.tenant, lane.queue .. ',' .. lane.task .. ',' .. how
  if redis.call('HINCRBY', key, field, tostring(by)) > by then return end
  if redis.call('HINCRBY', K .. ':outcomes', '', '1') > MOST_OUTCOMES then
    redis.call('HDEL', key, field)
    redis.call('HINCRBY', K .. ':outcomes', '', '-1')
  else
    redis.call('HSET', K .. ':outcomes', lane.tenant, '1')
  end
end

-- Answers

-- Add a job to an answer: id, size of its payload (0 if that follows), its bytes by `meta_of`, and its payload if it was
-- read; after it, only if its flags say so, its errors, its progress and its edits ('' = none); if it is blocked, the ids
-- it waits for.
local function answer(job, meta, to)
  local n = #to
  if job.payload then
    to[n + 1] = id_of(job.id) .. '\0\0\0\0' .. meta .. job.payload
  else
    to[n + 1] = id_of(job.id) .. struct.pack('>I', redis.call('STRLEN', job.key) - job.body - job[RUN_SIZE]) .. meta
  end
  if has(job, ERRORS) then to[#to + 1] = redis.call('LRANGE', K .. 'e' .. job.id, 0, -1) end
  if has(job, PROGRESS) then to[#to + 1] = redis.call('HGET', K .. ':progress', job.id) end
  if has(job, EXTRAS) then to[#to + 1] = redis.call('GET', K .. 'n' .. job.id) or '' end
  if job[STATE] == BLOCKED then to[#to + 1] = redis.call('GET', K .. 'a' .. job.id) end
end

-- Notify callers that wait for the end of a job.
local function notify_end(id)
  if redis.call('SREM', K .. ':awaited', id) == 1 then publish('end/' .. id) end
end

-- A followed job has ended, or is about to vanish. Upkeep looks until no completed parent is left, so only the first one
-- notifies it.
local function complete_parent(id, tenant, state)
  redis.call('ZADD', K .. ':completed', stamp(redis.call('INCR', K .. ':completions') * 8 + state), id_of(id) .. tenant)
  if redis.call('ZCARD', K .. ':completed') == 1 then publish('parents/completed') end
end

-- The time at which a job is dropped that finishes now; nil = never.
local function drop_at(keep)
  if keep < 0 then return nil end
  drop_times[keep] = drop_times[keep] or stamp(now + math.floor(keep * 1000000 + 0.5))
  return drop_times[keep]
end

-- Store a result, if it is to be kept. Returns: the flags, and the seconds until something of the job is dropped.
local function keep_result(id, result, flags, keep)
  local how = bit.band(flags, TIMED)
  if result == '' or how == NONE then return flags, keep end
  redis.call('SET', K .. 'r' .. id, result)
  if how == TIMED then keep = select(2, struct.unpack(HOLD, redis.call('GET', K .. 'h' .. id))) end
  return bit.bor(flags, RESULT), keep
end

-- The first jobs of a time index that are due. An entry without a job is dropped, so that it cannot stop a duty.
local function due_jobs(index, most)
  local found = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K .. index, '-inf', now, 'LIMIT', 0, most)) do
    local job = load(id)
    if job then found[#found + 1] = job else redis.call('ZREM', K .. index, id) end
  end
  return found
end

-- A job whose clock ran out, in an answer: id, state (plus RESULT_ONLY if only its result was dropped), lane.
local function swept(job, and_) return id_of(job.id) .. string.char(job[STATE] + (and_ or 0)) .. job.lane.plain end
