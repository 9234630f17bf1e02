-- Upkeep: jobs whose clock has run out, and jobs that wait for other jobs.

do

-- Jobs whose clock has run out, for a decision.
-- args →  'lease', 'expiry' or 'owner', most
-- returns →  now, { when each ran out }, then the jobs as `answer` makes them
register('overdue', FREES_MEMORY, function(args)
  local index = ({ lease = ':leases', expiry = ':stale', owner = ':owner_timeouts' })[args[2]]
  local times = {}
  local out = { stamp(now), times }
  for _, job in ipairs(due_jobs(index, args[3])) do
    times[#times + 1] = redis.call('ZSCORE', K .. index, job.id)
    answer(job, meta_of(job), out)
  end
  return out
end)

-- Queue scheduled jobs that are due.
-- args →  most
-- returns →  each as `swept` makes it
register('promote', FREES_MEMORY, function(args)
  local queues, out = {}, {}
  for _, job in ipairs(due_jobs(':due', args[2])) do
    leave(job)
    job[STATE], job[UPDATED] = QUEUED, now
    save(job)
    enter(job)
    queues[job.lane.queue] = true
    push(out, swept(job))
  end
  flush()
  for queue in pairs(queues) do publish('work/' .. queue) end
  return out
end)

-- When the record of a job is dropped whose result is dropped first; nil = never.
local function record_dropped_at(job)
  if job[KEEP] < 0 then return nil end
  return job[UPDATED] + math.floor(job[KEEP] * 1000000 + 0.5)
end

local function outlives_its_result(job)
  return job[STATE] == SUCCEEDED and bit.band(job[FLAGS], TIMED) == TIMED and (record_dropped_at(job) or now + 1) > now
end

-- Drop finished jobs that were kept long enough, and results that were.
-- args →  most
-- returns →  each as `swept` makes it
register('purge', FREES_MEMORY, function(args)
  local out = {}
  for _, job in ipairs(due_jobs(':gone', args[2])) do
    if outlives_its_result(job) then
      push(out, swept(job, RESULT_ONLY))
      if has(job, RESULT) then spend(job) end
      local at = record_dropped_at(job)
      if at then push(in_(added, ':gone'), stamp(at), job.id) else push(in_(removed, ':gone'), job.id) end
    else
      push(out, swept(job))
      leave(job)
      vanish(job, job[STATE])
    end
  end
  flush()
  return out
end)

-- A caller waits for the end of jobs.
-- args →  id, …
register('await_end', FREES_MEMORY, function(args)
  redis.call('SADD', K .. ':awaited', unpack(args, 2))
  redis.call('EXPIRE', K .. ':awaited', 120)
  return 1
end)

-- Dependencies

local function add_dependency(parent, tenant, child)
  local key = key_of(parent, tenant)
  local job = load(key)
  if not job then
    local score = redis.call('ZSCORE', K .. ':completed', parent .. tenant)
    return score and tonumber(score) % 8 or GONE
  end
  if job[STATE] <= PENDING then
    redis.call('SADD', K .. 'c' .. key, child)
    if not has(job, FOLLOWED) then
      mark(job, FOLLOWED)
      if job[STATE] == RUNNING then save_run(job) else redis.call('SETRANGE', job.key, '3', string.char(job[FLAGS])) end
    end
  end
  return job[STATE]
end

-- Jobs wait for others: note that at the parents that are pending.
-- args →  per edge: parent, tenant, child
-- returns →  per edge: the parent's state; GONE = there is no such job of that tenant
register('add_dependencies', STORES, function(args)
  local out = {}
  for i = 2, #args, 3 do out[#out + 1] = add_dependency(args[i], args[i + 1], args[i + 2]) end
  return out
end)

-- A completed parent was processed: take it off the list, unless it has more children or has ended again.
local function take_off(id, name, score)
  if redis.call('EXISTS', K .. 'c' .. id) == 1 or redis.call('ZSCORE', K .. ':completed', name) ~= score then return end
  redis.call('ZREM', K .. ':completed', name)
  if redis.call('EXISTS', K .. 'k' .. id, K .. 't' .. id) == 0 then return end -- only others wait for it: nothing follows it
  redis.call('DEL', K .. 'k' .. id)
  local job = load(id)
  if not job or not has(job, FOLLOWED) then redis.call('DEL', K .. 't' .. id) end
end

-- Take completed parents off the list, and answer some that are on it.
-- args →  most, most children of each; per job to take off: id, tenant, score, number of children processed, child, …
-- returns →  with most 0: 1 per job taken off; else per job: id .. tenant, score, the job that is to follow it
--         ('' = none), its result ('' = none), { children }
register('completed_parents', FREES_MEMORY, function(args)
  local i, out = 4, {}
  while i <= #args do
    local id, children = key_of(args[i], args[i + 1]), tonumber(args[i + 3])
    if children > 0 then redis.call('SREM', K .. 'c' .. id, unpack(args, i + 4, i + 3 + children)) end
    take_off(id, args[i] .. args[i + 1], args[i + 2])
    i = i + 4 + children
    out[#out + 1] = 1
  end
  if args[2] == '0' then return out end

  local first = redis.call('ZRANGE', K .. ':completed', 0, args[2] - 1, 'WITHSCORES')
  for n = 1, #first, 2 do
    local id = key_of(id_of(first[n]), string.sub(first[n], ID_SIZE + 1))
    local follows, result = redis.call('GET', K .. 't' .. id) or '', ''
    if follows ~= '' then result = redis.call('GET', K .. 'r' .. id) or redis.call('GET', K .. 'k' .. id) or '' end
    push(out, first[n], first[n + 1])
    push(out, follows, result)
    push(out, redis.call('SRANDMEMBER', K .. 'c' .. id, args[3]))
  end
  return out
end)

end
