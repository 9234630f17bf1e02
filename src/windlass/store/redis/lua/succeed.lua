-- End jobs well.
-- ARGV[2..]  per job: '>c16c8Hi8' (id, token, code, finished_at (0 = now)) .. result
--            result = '' (none), or content type, zero byte, data
-- Output     per job: 1 if it was held under that token, else 0; or 0 if this script cannot deal with them
local ids = {}
for i = 2, #ARGV do ids[i - 1] = string.sub(ARGV[i], 1, 16) end
local lives = redis.call('HMGET', K .. ':runs', unpack(ids))

-- What runs end with, route, worker and node: mostly the same for all of a batch, and taken apart once.
local tails, tail_of = {}, {}
for i = 1, #lives do
  local text = lives[i] and string.sub(lives[i], 71)
  if text and not tails[text] then
    if is_beyond(text, 1) then return 0 end
    local zero = string.find(text, '\0', 1, true)
    local whose = string.sub(text, zero + 1)
    tails[text] = { lane = lane_of(string.sub(text, 1, zero - 1)), whose = whose, worker = string.match(whose, '^[^%z]*') }
  end
  tail_of[i] = text and tails[text]
end

-- Keep a result; the flags with it, and the seconds until something of the job is dropped.
local function keep_result(id, result, flags, keep)
  local how = bit.band(flags, TIMED)
  if result == '' or how == NONE then return flags, keep end
  redis.call('SET', K .. 'r' .. id, result)
  if how == TIMED then keep = select(2, struct.unpack(HOLD, redis.call('GET', K .. 'h' .. id))) end
  return bit.bor(flags, RESULT), keep
end

-- Where the entries of a chunk go; jobs of one batch mostly share it.
local out_of, into, at_lane, at_chunk
local function turn_to(lane, chunk)
  if lane ~= at_lane or chunk ~= at_chunk then
    at_lane, at_chunk = lane, chunk
    out_of, into = in_(in_(lane.out, PENDING), chunk), in_(in_(lane.into, SUCCEEDED), chunk)
  end
end

-- The usual end, of a job's first run: all that is needed was noted at the claim, so its record is written without being read.
local now8, unleased, dropped = struct.pack('>I8', now), in_(removed, ':leases'), in_(added, ':gone')
local function finish_first_run(id, live, tail, code, finished, result, flags, attempt, pos, keep)
  local lane, worker = tail.lane, tail.worker
  -- A group without tiers may have come while the job ran at one.
  if lane.group then flow().give_back(id, lane, lane.group == '' or redis.call('HEXISTS', K .. ':assigned', id) == 1) end
  flags, keep = keep_result(id, result, forget_input(id, flags), keep)
  if bit.band(flags, FOLLOWED) ~= 0 then ripen(id, lane.tenant, SUCCEEDED) end
  local run = string.sub(live, 9, 20) .. struct.pack('>I8H', finished, code) .. tail.whose
  local key = K .. 'j' .. id
  redis.call('SETRANGE', key, '1', struct.pack('>BBBI', SUCCEEDED, 0, flags, attempt) .. string.sub(live, 35, 36) .. now8
    .. string.sub(live, 45, 52) .. struct.pack('>H', #run))
  redis.call('APPEND', key, run)

  local counts, place = lane.counts, place_of(pos)
  counts[RUNNING], counts[SUCCEEDED] = (counts[RUNNING] or 0) - 1, (counts[SUCCEEDED] or 0) + 1
  held[worker] = (held[worker] or 0) - 1
  ended[#ended + 1] = id
  unleased[#unleased + 1] = id
  if keep >= 0 then push(dropped, drop_at(keep), id) end
  turn_to(lane, chunk_of(pos))
  out_of[#out_of + 1] = place
  push(into, place, id)
end

local function finish(id, live, code, finished, result, keep)
  local job = load(id, false, live)
  leave(job)
  job[STATE], job[REASON], job[UPDATED] = SUCCEEDED, 0, now
  job.run[CODE], job.run[FINISHED] = code, finished
  if has(job, FOLLOWED) then ripen(id, job.lane.tenant, SUCCEEDED) end
  if keep == 0 then
    vanish(job, RUNNING)
  else
    job[FLAGS], keep = keep_result(id, result, forget_input(id, job[FLAGS]), keep)
    enter(job, drop_at(keep))
    relist(job, RUNNING)
    save(job)
  end
end

local out, ends = {}, {}
for i = 2, #ARGV do
  local id, live = ids[i - 1], lives[i - 1]
  local mine = live and not ends[id] and string.sub(live, 1, 8) == string.sub(ARGV[i], 17, 24)
  if mine then
    ends[id] = true
    local code, finished, from = struct.unpack('>Hi8', ARGV[i], 25)
    local reason, flags, before = struct.unpack('>BBI', live, 29)
    local run_size, pos, keep = struct.unpack('>HI8d', live, 53)
    if finished == 0 then finished = now end
    if reason == DELETED then keep = 0 end
    if run_size == 0 and keep ~= 0 then
      finish_first_run(id, live, tail_of[i - 1], code, finished, string.sub(ARGV[i], from), flags, before + 1, pos, keep)
    else
      finish(id, live, code, finished, string.sub(ARGV[i], from), keep)
    end
  end
  out[i - 1] = mine and 1 or 0
end
flush()
if next(ends) and redis.call('EXISTS', K .. ':awaited', K .. ':unattended') > 0 then
  local attended = {}
  for id in pairs(ends) do
    tell_end(id)
    push(attended, id)
  end
  send('ZREM', K .. ':unattended', attended)
end
return out
