-- The flow settings: putting them in force, moving jobs to other limit keys, and how limits stand.

do

-- The flow settings in force.
-- returns →  as they came, or nothing
register('rules', READS, function() return redis.call('GET', K .. ':rules') end)

local function pairs_of(words)
  local found = {}
  for i = 1, #words, 2 do found[words[i]] = words[i + 1] end
  return found
end

-- Replace a hash by a section of the arguments (number of pairs, name, value, …) that begins at `at`.
-- Returns: the hash before and after, the names that differ, where the next section begins.
local function write_section(key, args, at)
  local words, before = {}, pairs_of(redis.call('HGETALL', key))
  for i = at + 1, at + 2 * args[at] do push(words, args[i]) end
  redis.call('DEL', key)
  send('HSET', key, words)
  local after, changed = pairs_of(words), {}
  for name, value in pairs(before) do changed[name] = after[name] ~= value or nil end
  for name, value in pairs(after) do changed[name] = before[name] ~= value or nil end
  return before, after, changed, at + 1 + 2 * args[at]
end

-- The letters of queues; those that have had jobs with limit keys keep the letter for that.
local function write_modes(args, at)
  local limited = {}
  for queue, letters in pairs(pairs_of(redis.call('HGETALL', K .. ':flow'))) do
    if string.find(letters, 'b', 1, true) then limited[queue] = true end
  end
  local _, letters = write_section(K .. ':flow', args, at)
  for queue in pairs(limited) do redis.call('HSET', K .. ':flow', queue, (letters[queue] or '') .. 'b') end
  redis.call('HSET', K .. ':flow', '#', args[4], '@', args[2])
end

-- Running jobs of tenant queues whose tiers have changed count at the tiers of the same name.
local function renumber_tiers(changed)
  for tenant_queue in pairs(changed) do
    for _, id in ipairs(redis.call('ZRANGE', K .. ':levels:' .. tenant_queue, 0, -1)) do
      local tier = flow.tier_named(tenant_queue, string.match(redis.call('HGET', K .. ':assigned', id), ' (.*)$'))
      redis.call('ZADD', K .. ':levels:' .. tenant_queue, tier and tier.number or 0, id)
    end
  end
  flush()
end

local function takes_turns(fair, level)
  local queue = string.match(level, ',(.*)$')
  return fair[level] or (queue and fair['*,' .. queue])
end

-- Turns begin where they were not taken before, and are forgotten where they no longer are.
local function change_turns(before, after)
  local levels = {}
  for _, tenant_queue in ipairs(redis.call('ZRANGE', K .. ':tenant_queues', 0, -1)) do
    levels[tenant_queue], levels[string.match(tenant_queue, ',(.*)$')] = true, true
  end
  for _, level in ipairs(redis.call('HKEYS', K .. ':virtual_times')) do levels[level] = true end
  for level in pairs(levels) do
    local was, is = takes_turns(before, level), takes_turns(after, level)
    if was and not is then
      redis.call('DEL', K .. ':tags:' .. level, K .. ':turns:' .. level)
      redis.call('HDEL', K .. ':virtual_times', level)
    elseif is and not was then
      redis.call('ZUNIONSTORE', K .. ':tags:' .. level, 1, K .. ':heads:' .. level, 'WEIGHTS', 0)
    end
  end
end

-- Unblock what is behind a blocker that has changed: at once as far as that is little, else by and by.
local function unblock_changed(limits, tiers, pauses)
  local budget = flow.MOST
  for _, blocker in ipairs(redis.call('SMEMBERS', K .. ':blockers')) do
    local tenant_queue, is_pause = string.match(blocker, '^(.*)%^'), string.sub(blocker, 1, 1) == '!'
    if is_pause then
      if pauses[string.sub(blocker, 2)] then
        while flow.unblock(blocker, flow.MOST) > 0 do end
      end
    elseif tenant_queue and tiers[tenant_queue] or not tenant_queue and limits[string.match(blocker, '^[^=]*')] then
      if budget > 0 then
        budget = budget - 1 - flow.unblock(blocker)
      else
        redis.call('SADD', K .. ':dirty', blocker)
      end
    end
  end
end

-- Put flow settings in force.
-- args →  version; 'next' = only if it is the next one, 'later' = if it is a later one; epoch of the limit keys; the
--         settings, opaque here; number of limits, name, limit, …; the same for tiers, fair, pauses and the letters of
--         queues (see flow.lua)
-- returns →  1 if they were put in force, else 0
register('set_rules', STORES, function(args)
  local version, current = tonumber(args[2]), tonumber(redis.call('HGET', K .. ':flow', '@') or 0)
  if args[3] == 'next' and version ~= current + 1 or version <= current then return 0 end
  redis.call('SET', K .. ':rules', args[5])
  local _, _, limits, at = write_section(K .. ':limit_rules', args, 6)
  local _, _, tiers, at_fair = write_section(K .. ':tiers', args, at)
  local fair_before, fair, fair_changed, at_pauses = write_section(K .. ':fair', args, at_fair)
  local _, _, pauses, at_modes = write_section(K .. ':pauses', args, at_pauses)
  write_modes(args, at_modes)
  renumber_tiers(tiers)
  if next(fair_changed) then change_turns(fair_before, fair) end
  unblock_changed(limits, tiers, pauses)
  return 1
end)

-- A running job takes its places in the buckets of its new limit keys, and gives back the others.
local function move_places(id, before, after)
  local kept = {}
  for _, name in ipairs(flow.buckets_of(after)) do
    kept[name] = true
    redis.call('SADD', K .. ':places:' .. name, id)
    local limit = string.match(name, '^([^=]*)=')
    if limit then redis.call('SADD', K .. ':keys:' .. limit, name) end
  end
  for _, name in ipairs(flow.buckets_of(before)) do
    if not kept[name] then flow.give_back(id, { buckets = { name } }) end
  end
end

local function set_limit_keys(id, before, after)
  local job = load(id)
  if not job or job[STATE] > RUNNING or (job.lane.limit_keys or '') ~= before then return 0 end
  local old, new = job.lane, lane_of(after == '' and job.lane.plain or job.lane.plain .. ';' .. after)
  if old == new then return 1 end
  local value = redis.call('GET', job.key)
  local zero = string.find(value, '\0', 69, true)
  redis.call('SET', job.key, string.sub(value, 1, 68) .. new.name .. string.sub(value, zero))
  if job[STATE] == QUEUED then
    push(in_(old, 'unready'), member(job[SEQ], id))
    push(in_(new, 'ready'), job[PRIORITY], member(job[SEQ], id))
  elseif job[STATE] == RUNNING then
    job.lane = new
    save_run(job)
    move_places(id, old, new)
  end
  flush()
  if job[STATE] == QUEUED then publish('work/' .. new.queue) end
  return 1
end

-- Give jobs other limit keys.
-- args →  per job: id, its limit keys before and after ('' = none)
-- returns →  per job: 1 if it had those before and has not ended, else 0
register('regroup', STORES, function(args)
  local out = {}
  for i = 2, #args, 3 do out[#out + 1] = set_limit_keys(args[i], args[i + 1], args[i + 2]) end
  return out
end)

-- Start no job of a bucket for a while.
-- args →  bucket, how long (us)
register('hold', STORES, function(args)
  redis.call('ZADD', K .. ':holds', 'GT', stamp(now + args[3]), args[2])
  return 1
end)

-- Unblock what is behind blockers that have room.
-- args →  most
-- returns →  how many names were unblocked; the version of the flow settings
register('unblock_ready', FREES_MEMORY, function(args)
  local most, number = tonumber(args[2]), 0
  local dirty = redis.call('SRANDMEMBER', K .. ':dirty', args[2])
  redis.call('ZREMRANGEBYSCORE', K .. ':holds', '-inf', stamp(now))
  if redis.call('EXISTS', K .. ':wakes') == 1 then number = flow.unblock_due(args[2]) end
  for _, blocker in ipairs(dirty) do
    if number >= most then break end
    number = number + flow.unblock(blocker, most - number)
  end
  return { number, tonumber(redis.call('HGET', K .. ':flow', '@') or 0) }
end)

-- Whether a blocker blocks something of these queues.
local function blocks_any(blocker, queues)
  for _, seat in ipairs(redis.call('ZRANGE', K .. ':blocked_by:' .. blocker, 0, 99)) do
    if queues[string.match(seat, '^[^,]*,([^,]*)', 9)] then return true end
  end
  return false
end

-- When a clock alone unblocks something in some queues.
-- args →  queue, …
-- returns →  microseconds from now, or nothing
register('next_opening', FREES_MEMORY, function(args)
  local queues, best = {}, nil
  flow.unblock_due(flow.FEW)
  for i = 2, #args do
    queues[args[i]] = true
    local at = flow.queue_paused_until(args[i])
    if at and (not best or at < best) and redis.call('EXISTS', K .. ':heads:' .. args[i]) == 1 then best = at end
  end
  local clocks = redis.call('ZRANGE', K .. ':wakes', 0, 99, 'WITHSCORES')
  for i = 1, #clocks, 2 do
    local at = tonumber(clocks[i + 1])
    if best and at >= best then break end
    if blocks_any(clocks[i], queues) then
      best = at
      break
    end
  end
  return best and stamp(best - now) or false
end)

local MOST_LANES = 10000

-- How the buckets of a limit stand.
-- args →  limit, most buckets
-- returns →  per bucket: its name, places taken, blocked jobs, when its clock allows the next start ('' = now)
register('usage', FREES_MEMORY, function(args)
  local limit, most = args[2], tonumber(args[3])
  local names, waiting = { [limit] = true }, {}
  for _, name in ipairs(redis.call('SMEMBERS', K .. ':keys:' .. limit)) do names[name] = true end
  for _, text in ipairs(redis.call('ZRANGE', K .. ':limited_lanes', 0, MOST_LANES - 1)) do
    if string.find(text, '|' .. limit, 1, true) then
      local lane = lane_of(text)
      local number = flow.is_blocked(lane) and redis.call('ZCARD', K .. ':ready:' .. text) or 0
      for _, name in ipairs(flow.buckets_of(lane)) do
        waiting[name] = (waiting[name] or 0) + number
        if string.match(name, '^[^=]*') == limit then names[name] = true end
      end
    end
  end

  local sorted, out = {}, {}
  for name in pairs(names) do push(sorted, name) end
  table.sort(sorted)
  for _, name in ipairs(sorted) do
    local running, waits, at = redis.call('SCARD', K .. ':places:' .. name), waiting[name] or 0, flow.bucket_of(name).at
    if (running > 0 or waits > 0) and #out < 4 * most then
      push(out, name, running)
      push(out, waits, at and stamp(at) or '')
    end
  end
  return out
end)

end
