-- Indexes. What changes is gathered and written by `flush`, in few calls, at the end of the script.

local added, removed = {}, {} -- time index -> score, id, … and id, …
local held, ended, keys, unheard, emptied = {}, {}, {}, {}, {}

local function chunk_of(pos) return (pos - pos % CHUNK) / CHUNK end
local function place_of(pos) return string.char(pos % CHUNK) end
local function kind_of(state) return state > PENDING and state or PENDING end

-- Put a job that does not run into the index of its state. `at` = its due time, or the time it is dropped (nil = never), or its place
-- if it is blocked.
local function enter_as(lane, state, id, priority, seq, at)
  lane.counts[state] = (lane.counts[state] or 0) + 1
  if state == QUEUED then
    push(in_(lane, 'ready'), priority, member(seq, id))
  elseif state == SCHEDULED then
    push(in_(added, ':due'), at, id)
  elseif state == BLOCKED then
    push(in_(added, ':blocked:' .. lane.line), at, id)
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
    push(in_(removed, ':blocked:' .. lane.line), job.id)
    push(keys, K .. 'a' .. job.id)
  elseif state == RUNNING then
    push(in_(removed, ':leases'), job.id)
    push(ended, job.id)
    held[job.run[WORKER]] = (held[job.run[WORKER]] or 0) - 1
    if lane.group or job.assigned then flow().give_back(job.id, lane, job.assigned) end
  elseif state >= SUCCEEDED then
    push(in_(removed, ':gone'), job.id)
  end
end

-- The listing of a job that is now in another state.
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
    push(unheard, job.id)
  end
end

-- What was sent to a run goes with it; the flags without it.
local function forget_input(id, flags)
  if flags < EXTRAS or redis.call('DEL', K .. 'i' .. id) == 0 then return flags end
  if redis.call('EXISTS', K .. 'o' .. id, K .. 'f' .. id) > 0 then return flags end
  return flags - EXTRAS
end

-- A result was read for the only time, or kept long enough; for the job that follows it stays.
local function spend(job)
  unmark(job, RESULT)
  redis.call('SETRANGE', job.key, '3', string.char(job[FLAGS]))
  if has(job, FOLLOWED) and redis.call('ZSCORE', K .. ':ripe', id_of(job.id) .. job.lane.tenant) then
    redis.call('RENAME', K .. 'r' .. job.id, K .. 'k' .. job.id)
  else
    redis.call('DEL', K .. 'r' .. job.id)
  end
end

-- No trace is left of a job that has left its index, where it was in the state `before`.
local function vanish(job, before)
  stop_waiting(job)
  forget_progress(job)
  push(keys, job.key)
  if has(job, RESULT) then push(keys, K .. 'r' .. job.id) end
  if has(job, ERRORS) then push(keys, K .. 'e' .. job.id) end
  if bit.band(job[FLAGS], TIMED) == TIMED then push(keys, K .. 'h' .. job.id) end
  if has(job, EXTRAS) then
    push(keys, K .. 'o' .. job.id, K .. 'f' .. job.id)
    push(keys, K .. 'i' .. job.id)
  end
  if has(job, FOLLOWED) then
    push(keys, K .. 'k' .. job.id)
    if not redis.call('ZSCORE', K .. ':ripe', id_of(job.id) .. job.lane.tenant) then push(keys, K .. 'c' .. job.id, K .. 't' .. job.id) end
  end
  unlist(job.lane, before, job[POS])
  emptied[job.lane.line .. ' ' .. chunk_of(job[POS])] = true
end

local function lift_lane(lane)
  if lane.group or mode_of(lane.queue) then
    flow().raise(lane)
  elseif lift(K .. ':ready:' .. lane.route, K .. ':heads:' .. lane.line, lane.route) then
    lift(K .. ':heads:' .. lane.line, K .. ':heads:' .. lane.queue, lane.line)
  end
end

local function log_key(line, kind, chunk) return K .. ':log:' .. line .. ':' .. kind .. ':' .. chunk end

local function send_logs(command, line, lists)
  for kind, chunks in pairs(lists) do
    for chunk, entries in pairs(chunks) do send(command, log_key(line, kind, chunk), entries) end
  end
end

local function bump(key, field, by)
  if by ~= 0 and redis.call('HINCRBY', key, field, tostring(by)) == 0 then redis.call('HDEL', key, field) end
end

local function flush_listing(lane)
  if lane.out then send_logs('HDEL', lane.line, lane.out) end
  if lane.into then send_logs('HSET', lane.line, lane.into) end
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
    send('ZADD', K .. ':ready:' .. lane.route, lane.ready or {})
    send('ZREM', K .. ':ready:' .. lane.route, lane.unready or {})
    lift_lane(lane)
  end
end

-- A chunk without jobs is not looked at again; a line or tenant without jobs is forgotten.
local function tidy(line, chunk)
  for kind = PENDING, CANCELLED do
    if redis.call('EXISTS', log_key(line, kind, chunk)) == 1 then return end
  end
  redis.call('ZREM', K .. ':chunks:' .. line, chunk)
  if redis.call('EXISTS', K .. ':chunks:' .. line) == 1 then return end
  redis.call('ZREM', K .. ':lines', line)
  redis.call('HDEL', K .. ':pos', line)
  local tenant = string.match(line, '^[^,]*')
  if redis.call('EXISTS', K .. ':counts:' .. tenant) == 0 then redis.call('SREM', K .. ':tenants', tenant) end
end

local function flush_indexes()
  for index, ids in pairs(removed) do send('ZREM', K .. index, ids) end
  for index, scores in pairs(added) do send('ZADD', K .. index, scores) end
  send('HDEL', K .. ':runs', ended)
  for worker, by in pairs(held) do bump(K .. ':held', worker, by) end
  send('HDEL', K .. ':progress', unheard)
end

-- Write everything that was gathered.
local function flush()
  for _, lane in pairs(lanes) do flush_lane(lane) end
  flush_indexes()
  for _, key in ipairs(keys) do redis.call('DEL', key) end
  if made.control then made.control.flush() end
  for place in pairs(emptied) do tidy(string.match(place, '^(.*) (.*)$')) end
  lanes, added, removed, held, ended, keys, unheard, emptied = {}, {}, {}, {}, {}, {}, {}, {}
end

-- Claims

-- What runs that begin now have in common (see LIVE).
local function beginning_of(nonce) return struct.pack('>c8II8I8B', nonce, 0, now, now, 0) end

-- The entry in `runs` of a job with these bytes.
local function live_of(beginning, value, whose)
  return beginning .. string.sub(value, 4, 28) .. string.sub(value, 45, 52) .. string.sub(value, 61, 68) .. whose
end

local function memory_of(worker, nonce, queue) return K .. ':claim:' .. worker .. ',' .. nonce .. ',' .. queue end

-- What a claim took: it may be sent again.
local function remember(memory, ids) redis.call('SET', memory, ids, 'EX', '60') end

local function sized(id) return string.char(#id) .. id end

-- A worker has been heard of; not noted more often than once in a while. Its record is in the first partition only.
local function hear(worker, lease)
  local alive = tonumber(redis.call('ZSCORE', K .. ':workers', worker) or 0) > now
  if alive and now - redis.call('HGET', K .. ':worker:' .. worker, 'seen') >= SEEN_EVERY then
    redis.call('ZADD', K .. ':workers', now + lease, worker)
    redis.call('HSET', K .. ':worker:' .. worker, 'seen', string.format('%.0f', now))
  end
end

-- Count how runs of a lane ended. A task that would be one too many is not counted.
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

-- A job: id, size of its payload (0 if that follows), its bytes as `meta_of` makes them, and its payload if it was read; after it,
-- only if its flags say so, its errors and its progress, and if it is blocked what it waits for.
local function answer(job, meta, to)
  local n = #to
  if job.payload then
    to[n + 1] = id_of(job.id) .. '\0\0\0\0' .. meta .. job.payload
  else
    to[n + 1] = id_of(job.id) .. struct.pack('>I', redis.call('STRLEN', job.key) - job.body - job[RUN_SIZE]) .. meta
  end
  if has(job, ERRORS) then to[#to + 1] = redis.call('LRANGE', K .. 'e' .. job.id, 0, -1) end
  if has(job, PROGRESS) then to[#to + 1] = redis.call('HGET', K .. ':progress', job.id) end
  if job[STATE] == BLOCKED then to[#to + 1] = redis.call('GET', K .. 'a' .. job.id) end
end

-- Tell those who wait for the end of a job.
local function tell_end(id)
  if redis.call('SREM', K .. ':awaited', id) == 1 then publish('end/' .. id) end
end

-- A followed job has ended, or is about to vanish. Whoever deals with ripe ones looks again until there are none: so only the first is told of.
local function ripen(id, tenant, state)
  redis.call('ZADD', K .. ':ripe', stamp(redis.call('INCR', K .. ':ripening') * 8 + state), id_of(id) .. tenant)
  if redis.call('ZCARD', K .. ':ripe') == 1 then publish('house/ripe') end
end

-- The time a finished job is dropped; nil = never.
local drops = {}
local function drop_at(keep)
  if keep < 0 then return nil end
  drops[keep] = drops[keep] or stamp(now + math.floor(keep * 1000000 + 0.5))
  return drops[keep]
end

-- Keep what a job has come to, if it is to be kept; the flags with it, and the seconds until something of the job is dropped.
local function keep_result(id, result, flags, keep)
  local how = bit.band(flags, TIMED)
  if result == '' or how == NONE then return flags, keep end
  redis.call('SET', K .. 'r' .. id, result)
  if how == TIMED then keep = select(2, struct.unpack(HOLD, redis.call('GET', K .. 'h' .. id))) end
  return bit.bor(flags, RESULT), keep
end

-- The first jobs of a time index that are due. An entry without a job is dropped: nothing may block a duty for ever.
local function due_jobs(index, most)
  local found = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K .. index, '-inf', now, 'LIMIT', 0, most)) do
    local job = load(id)
    if job then found[#found + 1] = job else redis.call('ZREM', K .. index, id) end
  end
  return found
end

-- A job that was swept, as it is told: id, state (and RESULT_ONLY if only its result was dropped), lane.
local RESULT_ONLY = 128
local function swept(job, and_) return id_of(job.id) .. string.char(job[STATE] + (and_ or 0)) .. job.lane.name end
