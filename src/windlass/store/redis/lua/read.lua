-- Reading: jobs, listings, counts. Nothing here changes a job, but for a result that may be read once.

do

-- The store's clock.
-- returns →  microseconds
register('now', READS, function() return stamp(now) end)

-- Look jobs up.
-- args →  '1' with payload or '0' without; id, …
-- returns →  now, then the jobs that exist, as `answer` makes them
register('read', READS, function(args)
  local whole, out = args[2] == '1', { stamp(now) }
  for i = 3, #args do
    local job = load(args[i], whole)
    if job then answer(job, meta_of(job), out) end
  end
  return out
end)

-- The tenants that have a job of an id.
-- args →  most lookups; id, …
-- returns →  { tenants of an id }, … for as many of the ids as that allows, and for one at least
register('tenants_with', READS, function(args)
  local tenants, out = redis.call('SMEMBERS', K .. ':tenants'), {}
  for i = 3, #args do
    if #out > 0 and (#out + 1) * #tenants > tonumber(args[2]) then break end
    local found = {}
    for _, tenant in ipairs(tenants) do
      if redis.call('EXISTS', K .. 'j' .. key_of(args[i], tenant)) == 1 then push(found, tenant) end
    end
    push(out, found)
  end
  return out
end)

-- The result of a job, unless its time is over. Its flags are read from the beginning of its record: loading it whole would
-- take longer than all the rest.
local function result_of(id, counts_as_read)
  local flags = string.byte(redis.call('GETRANGE', K .. 'j' .. id, '3', '3')) or 0
  if bit.band(flags, RESULT) == 0 then return false end
  local once = bit.band(flags, ONCE) ~= 0
  if bit.band(flags, TIMED) == TIMED then
    if tonumber(redis.call('ZSCORE', K .. ':gone', id)) <= now then return false end
    once = struct.unpack(HOLD, redis.call('GET', K .. 'h' .. id)) == 1
  end
  local result = redis.call('GET', K .. 'r' .. id)
  if once and counts_as_read then spend(load(id)) end
  return result
end

-- The results of jobs. One that may be read once is dropped, but for the job that follows.
-- args →  1 if they count as read, else 0; id, …
-- returns →  per job: content type, zero byte, data; or nothing
register('results', FREES_MEMORY, function(args)
  local out = {}
  for i = 3, #args do out[i - 2] = result_of(args[i], args[2] == '1') end
  return out
end)

-- The output of a job.
-- args →  id, after (number), most
-- returns →  the pieces, each with CHUNK_HEAD
register('output', READS, function(args)
  local key, after = K .. 'o' .. args[2], tonumber(args[3])
  local first = redis.call('LINDEX', key, '0')
  if not first then return {} end
  local number, _, _, _, stream = struct.unpack(CHUNK_HEAD, first)
  if stream == NO_STREAM then return {} end
  local from = math.max(0, after - number + 1)
  return redis.call('LRANGE', key, from, from + args[4] - 1)
end)

-- Listings

-- Names of tenant queues from one on, in order.
-- args →  first tenant queue (inclusive), end (exclusive, '' = none), most
-- returns →  their names
register('tenant_queues', READS, function(args)
  local first, last = '[' .. args[2], args[3] == '' and '+' or '(' .. args[3]
  return redis.call('ZRANGEBYLEX', K .. ':tenant_queues', first, last, 'LIMIT', 0, args[4])
end)

-- A page under way: what is asked for, the `place` that it has reached, `found` jobs, `out`.
local function read_page(args)
  local page = {
    tenant_queue = args[2], place = tonumber(args[3]), most = tonumber(args[4]), newest_first = args[6] == '1',
    states = {}, kinds = {}, found = 0, out = { 0, 0 },
  }
  for i = 7, #args do
    local state = tonumber(args[i])
    page.states[state], page.kinds[kind_of(state)] = true, true
  end
  return page
end

-- Load the jobs of the page among these ids, by place.
local function load_wanted(page, ids, jobs)
  for _, id in ipairs(ids) do
    local job = load(id)
    if job and page.states[job[STATE]] and job.lane.tenant_queue == page.tenant_queue then
      local is_ahead = page.newest_first and job[POS] < page.place or not page.newest_first and job[POS] > page.place
      if is_ahead then jobs[job[POS]] = job end
    end
  end
end

-- Answer jobs in the order of the page; whether there is room for more.
local function answer_in_order(page, jobs)
  local places = {}
  for place in pairs(jobs) do places[#places + 1] = place end
  table.sort(places, page.newest_first and function(a, b) return a > b end or nil)
  for _, place in ipairs(places) do
    answer(jobs[place], meta_of(jobs[place]), page.out)
    page.place, page.found = place, page.found + 1
    if page.found == page.most then return false end
  end
  return true
end

local function end_page(page, is_last)
  page.out[1], page.out[2] = page.place, is_last and 1 or 0
  return page.out
end

-- A page of one state that has an index of its own.
local function page_of_index(page, ids)
  local jobs = {}
  load_wanted(page, ids, jobs)
  return end_page(page, answer_in_order(page, jobs))
end

-- Chunks of the page's tenant queue from its place on.
local function chunks_of(page, most)
  local key = K .. ':chunks:' .. page.tenant_queue
  if page.newest_first then
    return redis.call('ZREVRANGEBYSCORE', key, stamp(chunk_of(page.place - 1)), '-inf', 'LIMIT', 0, most)
  end
  return redis.call('ZRANGEBYSCORE', key, chunk_of(page.place + 1), '+inf', 'LIMIT', 0, most)
end

-- Jobs of one tenant queue in order of arrival, or newest first.
-- args →  tenant queue, after (place), most, most chunks, '1' = newest first, state, …
-- returns →  the place reached, 1 if the tenant queue ends here else 0, then the jobs as `answer` makes them
register('list', READS, function(args)
  local page, most_chunks = read_page(args), tonumber(args[5])
  local states, newest_first = page.states, page.newest_first
  -- Running jobs alone are found by their leases: there are never more of them than workers have slots.
  if states[RUNNING] and #args == 7 then return page_of_index(page, redis.call('ZRANGE', K .. ':leases', 0, -1)) end
  -- Blocked jobs alone have an index, for they may be few among many.
  if states[BLOCKED] and #args == 7 then
    local command, last = newest_first and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE', newest_first and '-inf' or '+inf'
    return page_of_index(page, redis.call(command, K .. ':blocked:' .. page.tenant_queue, '(' .. args[3], last, 'LIMIT', 0, page.most))
  end
  local chunks = chunks_of(page, most_chunks)
  for _, chunk in ipairs(chunks) do
    local jobs = {}
    for kind in pairs(page.kinds) do load_wanted(page, redis.call('HVALS', log_key(page.tenant_queue, kind, chunk)), jobs) end
    if not answer_in_order(page, jobs) then return end_page(page, false) end
    if newest_first then
      page.place = math.min(page.place, tonumber(chunk) * CHUNK)
    else
      page.place = math.max(page.place, (tonumber(chunk) + 1) * CHUNK - 1)
    end
  end
  return end_page(page, #chunks < most_chunks)
end)

-- Counts

-- Hashes of tenants as an answer: tenant, { field, number, … }, …
local function hashes_of(tenants, prefix)
  local out = {}
  for _, tenant in ipairs(tenants) do
    if tenant ~= '' then push(out, tenant, redis.call('HGETALL', prefix .. tenant)) end
  end
  return out
end

-- How many jobs there are, and how runs ended.
-- args →  tenant ('-' = all)
-- returns →  { tenant, { queue,task,state, number, … }, … }, { tenant, { queue,task,outcome, number, … }, … }
register('counts', READS, function(args)
  local is_all = args[2] == '-'
  return {
    hashes_of(is_all and redis.call('SMEMBERS', K .. ':tenants') or { args[2] }, K .. ':counts:'),
    hashes_of(is_all and redis.call('HKEYS', K .. ':outcomes') or { args[2] }, K .. ':outcomes:'),
  }
end)

-- How many jobs each worker runs.
-- returns →  worker, number, …
register('count_running', READS, function() return redis.call('HGETALL', K .. ':held') end)

-- What waits

-- How many jobs of its own lane are ahead of a queued job.
-- args →  id
-- returns →  the number, or nothing if it is not queued
register('rank', READS, function(args)
  local job = load(args[2])
  if not job or job[STATE] ~= QUEUED then return false end
  return redis.call('ZRANK', K .. ':ready:' .. job.lane.name, member(job[SEQ], job.id))
end)

local function answer_lane(lane, most, out)
  local number = redis.call('ZCARD', K .. ':ready:' .. lane)
  if number == 0 then return end
  push(out, lane, number)
  push(out, most > 0 and redis.call('ZRANGE', K .. ':ready:' .. lane, 0, most - 1, 'WITHSCORES') or {})
end

-- The queued jobs of a queue by lane.
-- args →  tenant ('-' = all), queue, most jobs of each
-- returns →  per lane: lane, number of jobs, { member of its first jobs, priority, … }
register('backlog', READS, function(args)
  local tenants = args[2] == '-' and redis.call('SMEMBERS', K .. ':tenants') or { args[2] }
  local queue, most, out = args[3], tonumber(args[4]), {}
  for _, tenant in ipairs(tenants) do
    local tenant_queue = tenant .. ',' .. queue
    for _, field in ipairs(redis.call('HKEYS', K .. ':counts:' .. tenant)) do
      local own, task, state = string.match(field, '^([^,]*),([^,]*),(.*)$')
      if own == queue and tonumber(state) == QUEUED then answer_lane(tenant_queue .. ',' .. task, most, out) end
    end
    local limited = redis.call('ZRANGEBYLEX', K .. ':limited_lanes', '[' .. tenant_queue .. ',', '(' .. tenant_queue .. '-')
    for _, lane in ipairs(limited) do answer_lane(lane, most, out) end
  end
  return out
end)

-- When the first scheduled job is due.
-- returns →  microseconds from now, 0 if it is due; or nothing
register('next_run', READS, function()
  local at = redis.call('ZRANGE', K .. ':due', 0, 0, 'WITHSCORES')[2]
  return at and stamp(math.max(at - now, 0)) or false
end)

-- Whether jobs are stored here in an older layout.
-- returns →  1 or 0
register('has_older_layout', READS, function() return redis.call('EXISTS', K .. ':lines') end)

end
