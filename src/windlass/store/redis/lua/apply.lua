-- Write moves that the lifecycle has decided, each only if its job still is what it was decided for.
-- ARGV[2..]  per move: id; fence ('' = none), of a blocked job the ids it waits for; error ('' = none), or of one that stays blocked the
--            ids it goes on to wait for; and
--            '>BIBBBBIBBi8HdBi8i8B': state, attempt and reason before; which clock must have run out (below); then target, reason,
--            attempt, crashes, losses, due, code, keep (-1 = for ever), how (below), finished_at (0 = now), the owner clock (us
--            from now, -1 = as it is), what the run is counted as (below, 0 = nothing); behind that, if a running job has or gets a
--            tier: the name of the one before, a zero byte, and the seconds and name of the new one; then what ran it ('' = unknown)
-- Output     per move: 1 if it was written, else 0
local LEASE, OWNER = 1, 2 -- clocks
local ANEW, ATTENDED = 1, 2 -- it starts anew; it is only attended to
local outcomes = { 'ok', 'failed', 'retry', 'error' }

-- Its output goes; what it puts out later is numbered on.
local function forget_output(id)
  local last = redis.call('LINDEX', K .. 'o' .. id, '-1')
  if not last then return end
  redis.call('DEL', K .. 'o' .. id)
  redis.call('RPUSH', K .. 'o' .. id, struct.pack(CHUNK_HEAD, struct.unpack('>I8', last), 0, 0, 0, NO_STREAM))
end

local function tier_of(assigned) return assigned and string.match(assigned, ' (.*)$') or '' end

local function write(id, fence, failure, packed, ran)
  local state, attempt, reason, lapsed, target, new_reason, new_attempt, crashes, losses, due, code, keep, how, finished,
    unattended, outcome, rest = struct.unpack('>BIBBBBIBBi8HdBi8i8B', packed)
  local job = load(id)
  if not job or job[STATE] ~= state or job[ATTEMPT] ~= attempt or job[REASON] ~= reason then return 0 end
  local tier_before, shrunk = string.match(packed, '^([^%z]*)%z?(.*)$', rest)
  if state == RUNNING and (job.run[TOKEN] ~= fence or tier_of(job.assigned) ~= tier_before) then return 0 end
  if state == BLOCKED and redis.call('GET', K .. 'a' .. id) ~= fence then return 0 end
  if lapsed == LEASE and tonumber(redis.call('ZSCORE', K .. ':leases', id)) > now then return 0 end
  if lapsed == OWNER and tonumber(redis.call('ZSCORE', K .. ':unattended', id) or now + 1) > now then return 0 end

  if unattended >= 0 then redis.call('ZADD', K .. ':unattended', stamp(now + unattended), id) end
  if how == ATTENDED then return 1 end
  if target >= SUCCEEDED or lapsed == OWNER then redis.call('ZREM', K .. ':unattended', id) end

  if target == BLOCKED then
    redis.call('SET', K .. 'a' .. id, failure)
    return 1
  end
  job[UPDATED] = now
  if target == RUNNING then
    job[REASON] = new_reason
    if shrunk ~= '' then
      job.assigned = shrunk
      flow().shrink(id, job.lane, shrunk)
    end
    save_run(job)
    publish('order/' .. job.run[WORKER])
    return 1
  end
  leave(job)
  if outcome > 0 then note_outcome(job.lane, outcomes[outcome], 1) end
  if state < SUCCEEDED and target >= SUCCEEDED and has(job, FOLLOWED) then ripen(id, job.lane.tenant, target) end
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
  if how == ANEW then
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
    tell_end(id)
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

local out = {}
for i = 2, #ARGV, 5 do
  out[#out + 1] = write(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
  flush() -- a batch may name a job twice: the second move must find the first one written
end
if made.control then made.control.end_rounds() end
return out
