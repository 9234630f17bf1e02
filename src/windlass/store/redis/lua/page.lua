-- Jobs of one line in order of arrival, or the other way round.
-- ARGV[2..]  line, after (place), most, most chunks, '1' = the newest first, state, …
-- Output     the place reached, 1 if the line ends here else 0, then the jobs
local line, after, most, most_chunks = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local newest_first = ARGV[6] == '1'
local states, kinds = {}, {}
for i = 7, #ARGV do
  local state = tonumber(ARGV[i])
  states[state], kinds[kind_of(state)] = true, true
end

local out, found = { 0, 0 }, 0

local function is_ahead(place)
  if newest_first then return place < after end
  return place > after
end

-- Answer the wanted ones among these jobs, in order; whether there is room for more.
local function tell(places, jobs)
  table.sort(places, newest_first and function(a, b) return a > b end or nil)
  for _, place in ipairs(places) do
    local job = jobs[place]
    answer(job, meta_of(job), out)
    after, found = place, found + 1
    if found == most then return false end
  end
  return true
end

local function wanted(id, places, jobs)
  local job = load(id)
  if job and states[job[STATE]] and job.lane.line == line and is_ahead(job[POS]) then
    places[#places + 1] = job[POS]
    jobs[job[POS]] = job
  end
end

-- Running jobs alone are found by their leases: there are never more of them than workers have slots.
if states[RUNNING] and #ARGV == 7 then
  local places, jobs = {}, {}
  for _, id in ipairs(redis.call('ZRANGE', K .. ':leases', 0, -1)) do wanted(id, places, jobs) end
  out[2] = tell(places, jobs) and 1 or 0
  out[1] = after
  return out
end

-- Blocked jobs alone have an index of their own: they are looked after though they may be few among many.
if states[BLOCKED] and #ARGV == 7 then
  local places, jobs = {}, {}
  local command, end_ = newest_first and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE', newest_first and '-inf' or '+inf'
  local first = redis.call(command, K .. ':blocked:' .. line, '(' .. ARGV[3], end_, 'LIMIT', 0, most)
  for _, id in ipairs(first) do wanted(id, places, jobs) end
  out[2] = tell(places, jobs) and 1 or 0
  out[1] = after
  return out
end

local chunks
if newest_first then
  chunks = redis.call('ZREVRANGEBYSCORE', K .. ':chunks:' .. line, stamp(chunk_of(after - 1)), '-inf', 'LIMIT', 0, most_chunks)
else
  chunks = redis.call('ZRANGEBYSCORE', K .. ':chunks:' .. line, chunk_of(after + 1), '+inf', 'LIMIT', 0, most_chunks)
end
for _, chunk in ipairs(chunks) do
  local places, jobs = {}, {}
  for kind in pairs(kinds) do
    for _, id in ipairs(redis.call('HVALS', log_key(line, kind, chunk))) do wanted(id, places, jobs) end
  end
  if not tell(places, jobs) then
    out[1] = after
    return out
  end
  if newest_first then
    after = math.min(after, tonumber(chunk) * CHUNK)
  else
    after = math.max(after, (tonumber(chunk) + 1) * CHUNK - 1)
  end
end
if #chunks < most_chunks then out[2] = 1 end
out[1] = after
return out
