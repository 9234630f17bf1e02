-- Runs of jobs: signs of life, messages, the end of a run, and moves that the lifecycle has decided.

do

-- Signs of life

-- Store pieces of output, and drop the oldest beyond MOST_PIECES and MOST_OUTPUT.
local function store_output(job, args, from, to)
  local key = K .. 'o' .. job.id
  local n, finish = 0, 0
  local last = redis.call('LINDEX', key, '-1')
  if last then
    n, finish = struct.unpack(CHUNK_HEAD, last)
    finish = finish + #last - CHUNK_HEAD_SIZE
  end
  for i = from, to do
    local piece = args[i]
    n = n + 1
    redis.call('RPUSH', key, struct.pack(CHUNK_HEAD, n, finish, job[ATTEMPT], now, string.byte(piece)) .. string.sub(piece, 2))
    finish = finish + #piece - 1
  end
  while true do
    local oldest = redis.call('LINDEX', key, '0')
    if not oldest then return end
    local number, start, _, _, stream = struct.unpack(CHUNK_HEAD, oldest)
    if stream ~= NO_STREAM and n - number < MOST_PIECES and finish - start <= MOST_OUTPUT then return end
    redis.call('LPOP', key)
  end
end

-- The messages to a running job behind a number, each with MESSAGE_HEAD; those up to it are dropped.
local function take_messages(id, after)
  local key = K .. 'i' .. id
  local first = redis.call('LINDEX', key, '0')
  if not first then return {} end
  local taken = struct.unpack(MESSAGE_HEAD, first)
  local spent = math.min(after - taken, redis.call('LLEN', key) - 1)
  if spent > 0 then
    redis.call('LTRIM', key, spent, -1)
    redis.call('LSET', key, 0, string.sub(redis.call('LINDEX', key, '0'), 1, 16))
  end
  return redis.call('LRANGE', key, 1, -1)
end

-- Renew the leases of running jobs and store what they report.
-- args →  lease (us); per job: id, token, pid ('' = unchanged), progress ('' = unchanged), what runs it and what that uses
--         ('' = unchanged; see `placed`),
--         number of the last message that its worker has ('' = it takes none), number of pieces of output (a minus
--         before it: the files that came with the job are dropped),
--         stream .. bytes, …
-- returns →  per job: 1 or 0 (held under that token), reason, its bytes by `meta_of` if it runs at a tier, else '';
--         { messages }, of all jobs none beyond MOST_COLLECTED bytes
register('heartbeat', STORES, function(args)
  local until_, out, room, i = stamp(now + tonumber(args[2])), {}, MOST_COLLECTED, 3
  while i <= #args do
    local id, token, pid, progress, ran = args[i], args[i + 1], args[i + 2], args[i + 3], args[i + 4]
    local after, pieces, messages = args[i + 5], math.abs(tonumber(args[i + 6])), {}
    local job = load(id)
    local mine = job and job[STATE] == RUNNING and job.run[TOKEN] == token
    if mine then
      push(in_(added, ':leases'), until_, id)
      if progress ~= '' then
        mark(job, PROGRESS)
        job[UPDATED] = now
        redis.call('HSET', K .. ':progress', id, progress)
      end
      if pieces > 0 then
        mark(job, EXTRAS)
        store_output(job, args, i + 7, i + 6 + pieces)
      end
      if string.byte(args[i + 6]) == 45 then redis.call('DEL', K .. 'f' .. id) end
      if pid ~= '' then job.run[PID], job[UPDATED] = tonumber(pid), now end
      if ran ~= '' then job.run[NODE] = placed(job.run[NODE], ran) end
      if pid ~= '' or progress ~= '' or ran ~= '' or pieces > 0 then save_run(job) end
      if after ~= '' and room > 0 then messages = take_messages(id, tonumber(after)) end
      for _, message in ipairs(messages) do room = room - #message end
    end
    push(out, mine and 1 or 0, mine and job[REASON] or 0)
    push(out, mine and job.assigned and meta_of(job) or '', messages)
    i = i + 7 + pieces
  end
  flush()
  return out
end)

-- Messages

-- Store a message for a job that has not ended.
-- args →  id, bytes, most bytes of all messages to one run ('' = any number)
-- returns →  'kept', 'full', 'over' or 'ended'
register('post', STORES, function(args)
  local id, data = args[2], args[3]
  local job = load(id)
  if not job or job[STATE] > RUNNING then return 'ended' end
  local key = K .. 'i' .. id
  local first, last = redis.call('LINDEX', key, '0'), redis.call('LINDEX', key, '-1')
  local taken, before, n, finish = 0, 0, 0, 0
  if first then
    taken, before = struct.unpack(MESSAGE_HEAD, first)
    n, finish = struct.unpack(MESSAGE_HEAD, last)
  end
  if args[4] ~= '' and finish + #data > tonumber(args[4]) then return 'over' end
  if n - taken >= MOST_MESSAGES or finish - before + #data > MOST_INPUT then return 'full' end
  if not first then redis.call('RPUSH', key, struct.pack(MESSAGE_HEAD, 0, 0)) end
  redis.call('RPUSH', key, struct.pack(MESSAGE_HEAD, n + 1, finish + #data) .. data)
  if not has(job, EXTRAS) then
    mark(job, EXTRAS)
    if job[STATE] == RUNNING then save_run(job) else save(job) end
  end
  if job[STATE] == RUNNING then publish('order/' .. job.run[WORKER]) end
  return 'kept'
end)

-- Files

-- Keep the files that a run has left, in the place of those that an earlier one left.
-- args →  id, token; name, bytes, …
-- returns →  1 if the job was held under that token, else 0
register('attach', STORES, function(args)
  local id, files = args[2], {}
  local job = load(id)
  if not job or job[STATE] ~= RUNNING or job.run[TOKEN] ~= args[3] then return 0 end
  for i = 4, #args do files[i - 3] = args[i] end
  redis.call('DEL', K .. 'g' .. id)
  send('HSET', K .. 'g' .. id, files)
  if not has(job, EXTRAS) then
    mark(job, EXTRAS)
    save_run(job)
  end
  return 1
end)

-- The files that a run has left.
-- args →  id
-- returns →  name, bytes of it (a number), …
register('left', READS, function(args)
  local key, out = K .. 'g' .. args[2], {}
  for _, name in ipairs(redis.call('HKEYS', key)) do push(out, name, redis.call('HSTRLEN', key, name)) end
  return out
end)

-- One of them.
-- args →  id, name
-- returns →  its bytes, or nil
register('read_file', READS, function(args) return redis.call('HGET', K .. 'g' .. args[2], args[3]) end)

-- Steps

local STEP_HEAD, STEP_HEAD_SIZE = '>I8I', 12

-- Bytes of the results of all steps of a job.
local function size_of_steps(key)
  local size = 0
  for _, name in ipairs(redis.call('HKEYS', key)) do size = size + redis.call('HSTRLEN', key, name) - STEP_HEAD_SIZE end
  return size
end

local function save_step(id, token, name, result, most, most_bytes)
  local job, key = load(id), K .. 'd' .. id
  if not job or job[STATE] ~= RUNNING or job.run[TOKEN] ~= token then return 'lost' end
  if redis.call('HEXISTS', key, name) == 1 then return 'kept' end
  local number = redis.call('HLEN', key)
  if number >= most or size_of_steps(key) + #result > most_bytes then return 'full' end
  redis.call('HSET', key, name, struct.pack(STEP_HEAD, now, number) .. result)
  if not has(job, EXTRAS) then
    mark(job, EXTRAS)
    save_run(job)
  end
  return 'kept'
end

-- Keep the results of steps. What a job has under a name stays.
-- args →  most steps of a job, most bytes of their results; per step: id, token, name, bytes
-- returns →  per step: 'kept', 'full' or 'lost'
register('save_steps', STORES, function(args)
  local out = {}
  for i = 4, #args, 4 do
    push(out, save_step(args[i], args[i + 1], args[i + 2], args[i + 3], tonumber(args[2]), tonumber(args[3])))
  end
  return out
end)

-- The steps of a job.
-- args →  id
-- returns →  now; name, its time, number and bytes, …
register('steps', READS, function(args) return { stamp(now), unpack(redis.call('HGETALL', K .. 'd' .. args[2])) } end)

-- Successes

-- What a run was stored with (see LIVE), before and behind its job's place: mostly the same for all of a batch, and read
-- once.
local function front_of(text)
  local reason, flags, before = struct.unpack('>BBI', text, 29)
  return {
    token = string.sub(text, 1, 8), start = string.sub(text, 9, 20), reason = reason, flags = flags, attempt = before + 1,
    crashes = string.sub(text, 35, 36), due = string.sub(text, 45, 52), again = string.sub(text, 53, 54) ~= '\0\0',
  }
end

local function back_of(text)
  local zero = string.find(text, '\0', 9, true)
  local whose = string.sub(text, zero + 1)
  return {
    keep = struct.unpack('>d', text), lane = lane_of(string.sub(text, 9, zero - 1)), whose = whose,
    worker = string.match(whose, '^[^%z]*'),
  }
end

-- How a first run ended: what is written over the head of its record and appended to it. Kept for the next job, which
-- mostly ends the same.
local last
local function ending_of(early, late, code, finished, flags, ran)
  if last.early ~= early or last.late ~= late or last.code ~= code or last.finished ~= finished or last.flags ~= flags or last.ran ~= ran then
    local whose = late.whose
    if ran ~= '' then whose = late.worker .. '\0' .. string.match(whose, '^[^%z\30\31]*', #late.worker + 2) .. ran .. '\0' end
    local run = early.start .. struct.pack('>I8H', finished, code) .. whose
    local head = struct.pack('>BBBI', SUCCEEDED, 0, flags, early.attempt) .. early.crashes .. struct.pack('>I8', now) .. early.due
      .. struct.pack('>H', #run)
    last = { early = early, late = late, code = code, finished = finished, flags = flags, ran = ran, head = head, run = run }
  end
  return last
end

-- Where the listings of jobs that end go; jobs of one batch mostly share a chunk.
local listing
local function listing_of(lane, chunk)
  if listing.lane ~= lane or listing.chunk ~= chunk then
    local out, into = in_(in_(lane, 'out'), PENDING), in_(in_(lane, 'into'), SUCCEEDED)
    listing = { lane = lane, chunk = chunk, out = in_(out, chunk), into = in_(into, chunk) }
  end
  return listing
end

-- The usual end, of a job's first run: the claim noted all that is needed, so the record is written without being read.
local function finish_first_run(id, early, late, code, finished, ran, result, pos)
  local lane, worker = late.lane, late.worker
  if lane.limit_keys then
    -- Limit keys without tiers may have come while the job ran at a tier.
    flow.give_back(id, lane, lane.limit_keys == '' or redis.call('HEXISTS', K .. ':assigned', id) == 1)
  end
  local flags, keep = keep_result(id, result, forget_input(id, early.flags), late.keep)
  if bit.band(flags, FOLLOWED) ~= 0 then complete_parent(id, lane.tenant, SUCCEEDED) end
  local key, ending = K .. 'j' .. id, ending_of(early, late, code, finished, flags, ran)
  redis.call('SETRANGE', key, '1', ending.head)
  redis.call('APPEND', key, ending.run)

  local counts, chunk, place = lane.counts, chunk_of(pos), place_of(pos)
  counts[RUNNING], counts[SUCCEEDED] = (counts[RUNNING] or 0) - 1, (counts[SUCCEEDED] or 0) + 1
  held[worker] = (held[worker] or 0) - 1
  push(ended, id)
  push(in_(removed, ':leases'), id)
  if keep >= 0 then push(in_(added, ':gone'), drop_at(keep), id) end
  local listed = listing_of(lane, chunk)
  push(listed.out, place)
  push(listed.into, place, id)
end

-- The end of a job that has run before, that is not kept, or that did not end by its own word (then its worker is notified).
local function finish_other(id, live, code, finished, reason, ran, result, keep)
  local job = load(id, false, live)
  leave(job)
  if reason > 0 then publish('order/' .. job.run[WORKER]) end
  job[STATE], job[REASON], job[UPDATED] = SUCCEEDED, reason, now
  job.run[CODE], job.run[FINISHED] = code, finished
  if ran ~= '' then job.run[NODE] = placed(job.run[NODE], ran) end
  if has(job, FOLLOWED) then complete_parent(id, job.lane.tenant, SUCCEEDED) end
  if keep == 0 then
    vanish(job, RUNNING)
  else
    job[FLAGS], keep = keep_result(id, result, forget_input(id, job[FLAGS]), keep)
    enter(job, drop_at(keep))
    relist(job, RUNNING)
    save(job)
  end
end

-- End jobs with success.
-- args →  per job: size of its key (a byte), key, '>c8Hi8Bs' (token, code, finished_at (0 = now), reason (0 = by its own
--         word), what ran it ('' = unknown)) .. result; result = '' (none), or content type, zero byte, data
-- returns →  per job: 1 if it was held under that token, else 0
register('succeed', STORES, function(args)
  local ids = {}
  for i = 2, #args do ids[i - 1] = string.sub(args[i], 2, 1 + string.byte(args[i])) end
  local lives = redis.call('HMGET', K .. ':runs', unpack(ids))
  local fronts, backs, out, ends, oks = {}, {}, {}, {}, {}
  last, listing = {}, {}
  for i = 1, #ids do
    local id, live, arg, mine = ids[i], lives[i], args[i + 1], false
    if live and not ends[id] then
      local early, late = string.sub(live, 1, 54), string.sub(live, 63)
      local front, back = fronts[early] or front_of(early), backs[late] or back_of(late)
      fronts[early], backs[late] = front, back
      mine = front.token == string.sub(arg, #id + 2, #id + 9)
      if mine then
        ends[id] = true
        oks[back.lane] = (oks[back.lane] or 0) + 1
        local code, finished, reason, ran, from = struct.unpack('>Hi8Bs', arg, #id + 10)
        local keep = front.reason == DELETED and 0 or back.keep
        if finished == 0 then finished = now end
        if front.again or keep == 0 or reason > 0 then
          finish_other(id, live, code, finished, reason, ran, string.sub(arg, from), keep)
        else
          finish_first_run(id, front, back, code, finished, ran, string.sub(arg, from), (struct.unpack('>I8', live, 55)))
        end
      end
    end
    out[i] = mine and 1 or 0
  end
  for lane, number in pairs(oks) do note_outcome(lane, 'ok', number) end
  flush()
  if next(ends) and redis.call('EXISTS', K .. ':awaited', K .. ':owner_timeouts') > 0 then
    local finished = {}
    for id in pairs(ends) do
      notify_end(id)
      push(finished, id)
    end
    send('ZREM', K .. ':owner_timeouts', finished)
  end
  return out
end)

-- Moves

local LEASE, OWNER = 1, 2 -- clocks that must have run out
-- It starts over; only its owner clock is renewed; its run goes on elsewhere; a parent has ended; its worker gets an order.
local RERUN, TOUCH_OWNER, ADOPT, MEET, ORDER = 1, 2, 3, 4, 5
local ADOPTER = '>c8I8ss' -- token, lease (us), worker, node
local OUTCOMES = { 'ok', 'failed', 'retry', 'error' }

-- Drop the output of a job; later output is numbered on.
local function forget_output(id)
  local newest = redis.call('LINDEX', K .. 'o' .. id, '-1')
  if not newest then return end
  redis.call('DEL', K .. 'o' .. id)
  redis.call('RPUSH', K .. 'o' .. id, struct.pack(CHUNK_HEAD, struct.unpack('>I8', newest), 0, 0, 0, NO_STREAM))
end

local function tier_of(assigned) return assigned and string.match(assigned, ' (.*)$') or '' end

-- The run of a job goes on under another worker and token.
local function adopt(job, adopter)
  local run, before, lease = job.run, job.run[WORKER], 0
  run[TOKEN], lease, run[WORKER], run[NODE] = struct.unpack(ADOPTER, adopter)
  held[before] = (held[before] or 0) - 1
  held[run[WORKER]] = (held[run[WORKER]] or 0) + 1
  push(in_(added, ':leases'), stamp(now + lease), job.id)
  save_run(job)
  publish('order/' .. before)
end

-- How often callers have edited a job.
local function edits_of(job)
  local edits = job[FLAGS] >= EXTRAS and redis.call('GET', K .. 'n' .. job.id)
  return edits and struct.unpack('>I', edits) or 0
end

-- Write how often callers have edited a job, and its annotations.
local function note_edit(job, change)
  redis.call('SET', K .. 'n' .. job.id, struct.pack('>I', change.number + 1) .. change.annotations)
  mark(job, EXTRAS)
  if job[STATE] <= PENDING then job[UPDATED] = now end -- later it says from when on the record is kept
end

-- List a job in another tenant queue, as the last one that arrived there.
local function arrive(job, lane)
  local old, tenant_queue = job.lane, lane.tenant_queue
  unlist(old, job[STATE], job[POS])
  emptied[old.tenant_queue .. ' ' .. chunk_of(job[POS])] = true
  job[SEQ], job[POS] = redis.call('INCR', K .. ':seq'), redis.call('HINCRBY', K .. ':pos', tenant_queue, '1')
  list(lane, job[STATE], job[POS], job.id)
  local chunk = tostring(chunk_of(job[POS]))
  if redis.call('ZADD', K .. ':chunks:' .. tenant_queue, chunk, chunk) == 1 then
    redis.call('ZADD', K .. ':tenant_queues', '0', tenant_queue)
    redis.call('SADD', K .. ':tenants', lane.tenant)
  end
end

-- Write what a job that waits is from now on. Unless it changes its queue it keeps its sequence and its place.
local function rewrite(job, change, target, due)
  note_edit(job, change)
  local value, before = redis.call('GET', job.key), job[STATE]
  local run = string.sub(value, #value - job[RUN_SIZE] + 1)
  local old, lane = job.lane, lane_of(change.lane)
  local moves = lane.tenant_queue ~= old.tenant_queue
  if before ~= BLOCKED then
    leave(job)
  elseif moves then
    old.counts[BLOCKED] = (old.counts[BLOCKED] or 0) - 1
    push(in_(removed, ':blocked:' .. old.tenant_queue), job.id)
  end
  if moves then arrive(job, lane) end
  job.lane = lane
  job[STATE], job[DUE], job[PRIORITY], job[TERMS_SIZE] = target, due, change.priority, change.terms_size
  if change.identity ~= '' then
    job[KIND] = UNIQUE
    forget_identity(job.id)
    local other = redis.call('HGET', K .. ':unique', change.identity)
    if other then redis.call('HDEL', K .. ':identities', other) end
    redis.call('HSET', K .. ':unique', change.identity, job.id)
    redis.call('HSET', K .. ':identities', job.id, change.identity)
  end
  if before ~= BLOCKED or moves then enter(job, job[POS]) end
  redis.call('SET', job.key, struct.pack(HEAD, unpack(job, 1, HEAD_FIELDS)) .. change.body .. run)
  if target == QUEUED then publish('work/' .. job.lane.queue) end
end

-- The job for which one cannot get another identity; nil if it can.
local function refused_by(id, change)
  if change.identity == '' then return nil end
  local other = redis.call('HGET', K .. ':unique', change.identity)
  if not other or other == id then return nil end
  local job = load(other)
  return job and keeps_off(job, change.time) and struct.pack('>IB', 1, job[STATE]) .. id_of(other)
end

-- Write an edit; 1, or the job for which it is refused.
local function edit(job, change, target, due)
  if change.lane then
    local other = refused_by(job.id, change)
    if other then return other end
    rewrite(job, change, target, due)
    return 1
  end
  note_edit(job, change)
  if job[STATE] == RUNNING then save_run(job) else save(job) end
  return 1
end

-- Write one move; 1 if it was written, else 0. `change`: what a caller edits with it, if anything.
local function move(id, fence, failure, packed, ran, change)
  local state, attempt, reason, lapsed, target, new_reason, new_attempt, crashes, losses, due, code, keep, how, finished,
    owner_timeout, outcome, rest = struct.unpack('>BIBBBBIBBi8HdBi8i8B', packed)
  local job = load(id)
  if not job or job[STATE] ~= state or job[ATTEMPT] ~= attempt or job[REASON] ~= reason then return 0 end
  local tier_before, shrunk = string.match(packed, '^([^%z]*)%z?(.*)$', rest)
  if state == RUNNING and (job.run[TOKEN] ~= fence or tier_of(job.assigned) ~= tier_before) then return 0 end
  if state == BLOCKED and redis.call('GET', K .. 'a' .. id) ~= fence then return 0 end
  if lapsed == LEASE and tonumber(redis.call('ZSCORE', K .. ':leases', id)) > now then return 0 end
  if lapsed == OWNER and tonumber(redis.call('ZSCORE', K .. ':owner_timeouts', id) or now + 1) > now then return 0 end
  if change and edits_of(job) ~= change.number then return 0 end
  if change then return edit(job, change, target, due) end
  if target == state and how == 0 then error('a step leaves a job in its state, and this library was not taught it') end

  if owner_timeout >= 0 then redis.call('ZADD', K .. ':owner_timeouts', stamp(now + owner_timeout), id) end
  if how == TOUCH_OWNER then return 1 end
  if target >= SUCCEEDED or lapsed == OWNER then redis.call('ZREM', K .. ':owner_timeouts', id) end

  if how == MEET then
    redis.call('SET', K .. 'a' .. id, failure)
    return 1
  end
  job[UPDATED] = now
  if how == ADOPT then
    adopt(job, failure)
    return 1
  end
  if target == RUNNING then
    job[REASON] = new_reason
    if shrunk ~= '' then
      job.assigned = shrunk
      flow.shrink(id, job.lane, shrunk)
    end
    save_run(job)
    publish('order/' .. job.run[WORKER])
    return 1
  end
  leave(job)
  if new_reason == BY_HAND then publish('order/' .. job.run[WORKER]) end
  if outcome > 0 then note_outcome(job.lane, OUTCOMES[outcome], 1) end
  if state < SUCCEEDED and target >= SUCCEEDED and has(job, FOLLOWED) then complete_parent(id, job.lane.tenant, target) end
  if target == GONE then
    vanish(job, state)
    return 1
  end

  if ran ~= '' then job.run[NODE] = placed(job.run[NODE], ran) end
  if state == RUNNING or target >= SUCCEEDED then job[FLAGS] = forget_input(id, job[FLAGS]) end
  job[STATE], job[REASON], job[ATTEMPT], job[CRASHES], job[LOSSES] = target, new_reason, new_attempt, crashes, losses
  job[DUE], job.run[CODE], job.run[TOKEN], job.run[FINISHED] = due, code, NO_TOKEN, 0
  if failure ~= '' then
    mark(job, ERRORS)
    redis.call('RPUSH', K .. 'e' .. id, failure)
    redis.call('LTRIM', K .. 'e' .. id, -MOST_ERRORS, -1)
  end
  if how == RERUN then
    stop_waiting(job)
    forget_progress(job)
    if has(job, RESULT) then redis.call('DEL', K .. 'r' .. id) end
    if has(job, FOLLOWED) then redis.call('DEL', K .. 'k' .. id) end
    unmark(job, RESULT)
    if has(job, EXTRAS) then forget_output(id) end
  end
  if target >= SUCCEEDED then
    stop_waiting(job)
    job.run[FINISHED] = finished > 0 and finished or now
    notify_end(id)
    if keep == 0 then
      vanish(job, state)
      return 1
    end
  end
  enter(job, target >= SUCCEEDED and drop_at(keep) or nil)
  relist(job, state)
  save(job)
  if target == QUEUED then publish('work/' .. job.lane.queue) end
  return 1
end

-- How many of these runs were ordered to stop; `orders` = the reasons that say so, a byte each.
local function stopping(ids, orders)
  local number = 0
  for _, id in ipairs(ids) do
    local job = load(id)
    if job and job[STATE] == RUNNING and string.find(orders, string.char(job[REASON]), 1, true) then number = number + 1 end
  end
  return number
end

local function is_queued(id)
  local job = load(id)
  return job and job[STATE] == QUEUED
end

-- Waiting jobs that start next: their number, then each, are `args` from `at` on. Returns: how many of the first n of them
-- are still queued, for each n from 0; and where that ends.
local function queued_ahead(args, at)
  local behind, queued = at + tonumber(args[at]), { [0] = 0 }
  for i = at + 1, behind do queued[i - at] = queued[i - at - 1] + (is_queued(args[i]) and 1 or 0) end
  return queued, behind
end

-- Write moves that make room in a tenant queue with tiers, each only if it is needed yet and its job is still what it was
-- decided for.
-- args →  tenant queue; reasons that order a run to stop, a byte each; the workers as `flow.free_slots` reads them; number
--         of yielding runs, id, …; number of waiting jobs that start next, id, …; then per move: the job that needs room
--         ('' = any), the name of the tier that must be full ('' = slots are needed), how many slots it needs, how many of
--         the jobs that start next start before it; and as for apply
-- returns →  per move: 1 if it was written, else 0
register('make_room', FREES_MEMORY, function(args)
  local free, at = flow.free_slots(args, 4)
  local behind = at + tonumber(args[at])
  local yielding, out = { unpack(args, at + 1, behind) }, {}
  local queued, last = queued_ahead(args, behind + 1)
  for i = last + 1, #args, 9 do
    local full = args[i + 1]
    local is_needed = args[i] == '' or is_queued(args[i])
    if is_needed and full ~= '' then is_needed = flow.is_full(args[2], full)
    elseif is_needed then
      is_needed = free + stopping(yielding, args[3]) - queued[tonumber(args[i + 3])] < tonumber(args[i + 2])
    end
    out[#out + 1] = is_needed and move(args[i + 4], args[i + 5], args[i + 6], args[i + 7], args[i + 8]) or 0
    flush()
  end
  return out
end)

-- Write moves that the lifecycle has decided, each only if its job is still what it was decided for.
-- args →  per move: id; fence ('' = none), for a blocked job the ids it waits for; error ('' = none), for an adoption
--         the ADOPTER, or for a job that stays blocked the ids it goes on to wait for; and '>BIBBBBIBBi8HdBi8i8B': state, attempt and reason before;
--         the clock that must have run out (LEASE, OWNER, 0); then target, reason, attempt, crashes, losses, due, code,
--         keep (-1 = without limit), how (RERUN … ORDER, 0 = another step), finished_at (0 = now), the owner clock (us from now, -1 = as
--         it is), the outcome that is counted (OUTCOMES, 0 = none); behind that, if a running job has or gets a tier: the
--         name of the one before, a zero byte, and the seconds and name of the new one; then what ran it ('' = unknown)
-- returns →  per move: 1 if it was written, else 0
register('apply', FREES_MEMORY, function(args)
  local out = {}
  for i = 2, #args, 5 do
    out[#out + 1] = move(args[i], args[i + 1], args[i + 2], args[i + 3], args[i + 4])
    flush() -- a batch may name a job twice: the second move must find the first one written
  end
  flow.end_rounds()
  return out
end)

-- Write a move by which a caller edits a job.
-- args →  as for apply, of one move; the number of edits before it; the annotations ('' = none); then, if more than these
--         changes: epoch of the limit keys; lane; priority; size of the terms; lane, zero byte, terms and payload; identity
--         ('' = as it is), and for how long there is one such job (us, or WHILE_…)
-- returns →  1 if it was written, else 0; or, as a string, the job that is the same: 1, its state and id; or the error
--         STALERULES
register('edit', STORES, function(args)
  local change = { number = tonumber(args[7]), annotations = args[8] }
  if args[9] then
    if (redis.call('HGET', K .. ':flow', '#') or '0') ~= args[9] then return refuse_epoch() end
    change.lane, change.priority, change.terms_size, change.body = args[10], tonumber(args[11]), tonumber(args[12]), args[13]
    change.identity, change.time = args[14], tonumber(args[15])
  end
  local written = move(args[2], args[3], args[4], args[5], args[6], change)
  flush()
  flow.end_rounds()
  return written
end)

end
