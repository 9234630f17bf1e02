-- End jobs well.
-- ARGV[2..]  per job: size of its key (a byte), key, '>c8Hi8s' (token, code, finished_at (0 = now), what ran it ('' = unknown)) .. result
--            result = '' (none), or content type, zero byte, data
-- Output     per job: 1 if it was held under that token, else 0; or 0 if this script cannot deal with them
local ids = {}
for i = 2, #ARGV do ids[i - 1] = string.sub(ARGV[i], 2, 1 + string.byte(ARGV[i])) end
local lives = redis.call('HMGET', K .. ':runs', unpack(ids))

-- What a run was noted with (see LIVE), before and behind its job's place: mostly the same for all of a batch, and taken apart once.
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
    keep = struct.unpack('>d', text), lane = lane_of(string.sub(text, 9, zero - 1)), whose = whose, worker = string.match(whose, '^[^%z]*'),
  }
end

local fronts, backs, front, back = {}, {}, {}, {}
for i = 1, #lives do
  local live = lives[i]
  if live then
    local early, late = string.sub(live, 1, 54), string.sub(live, 63)
    local known_front, known_back = fronts[early], backs[late]
    if not known_front or not known_back then
      if is_beyond(late, 9) then return 0 end
      known_front, known_back = known_front or front_of(early), known_back or back_of(late)
      if is_for_others(known_front, known_back) then return 0 end
      fronts[early], backs[late] = known_front, known_back
    end
    front[i], back[i] = known_front, known_back
  end
end

-- Where the entries of a chunk go; jobs of one batch mostly share it.
local out_of, into, at_lane, at_chunk
local function turn_to(lane, chunk)
  if lane ~= at_lane or chunk ~= at_chunk then
    at_lane, at_chunk = lane, chunk
    out_of, into = in_(in_(in_(lane, 'out'), PENDING), chunk), in_(in_(in_(lane, 'into'), SUCCEEDED), chunk)
  end
end

-- How a first run ended: what is written over the head of its record and what is added to it. Kept for the next job, which mostly ends
-- the same.
local now8, last = struct.pack('>I8', now), {}
local function ending_of(early, late, code, finished, flags, ran)
  if last.early ~= early or last.late ~= late or last.code ~= code or last.finished ~= finished or last.flags ~= flags or last.ran ~= ran then
    local whose = late.whose
    if ran ~= '' then whose = late.worker .. '\0' .. string.match(whose, '^[^%z\31]*', #late.worker + 2) .. ran .. '\0' end
    local run = early.start .. struct.pack('>I8H', finished, code) .. whose
    local head = struct.pack('>BBBI', SUCCEEDED, 0, flags, early.attempt) .. early.crashes .. now8 .. early.due .. struct.pack('>H', #run)
    last = { early = early, late = late, code = code, finished = finished, flags = flags, ran = ran, head = head, run = run }
  end
  return last
end

-- The usual end, of a job's first run: all that is needed was noted at the claim, so its record is written without being read.
local unleased, dropped = in_(removed, ':leases'), in_(added, ':gone')
local function finish_first_run(id, early, late, code, finished, ran, result, pos)
  local lane, worker = late.lane, late.worker
  -- A group without tiers may have come while the job ran at one.
  if lane.group then flow().give_back(id, lane, lane.group == '' or redis.call('HEXISTS', K .. ':assigned', id) == 1) end
  local flags, keep = keep_result(id, result, forget_input(id, early.flags), late.keep)
  if bit.band(flags, FOLLOWED) ~= 0 then ripen(id, lane.tenant, SUCCEEDED) end
  local key, ending = K .. 'j' .. id, ending_of(early, late, code, finished, flags, ran)
  redis.call('SETRANGE', key, '1', ending.head)
  redis.call('APPEND', key, ending.run)

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

local out, ends, oks = {}, {}, {}
for i = 2, #ARGV do
  local id, early, late = ids[i - 1], front[i - 1], back[i - 1]
  local mine = early and not ends[id] and early.token == string.sub(ARGV[i], #id + 2, #id + 9)
  if mine then
    ends[id] = true
    oks[late.lane] = (oks[late.lane] or 0) + 1
    local code, finished, ran, from = struct.unpack('>Hi8s', ARGV[i], #id + 10)
    local keep = early.reason == DELETED and 0 or late.keep
    if finished == 0 then finished = now end
    if early.again or keep == 0 then
      finish_other(id, lives[i - 1], code, finished, ran, string.sub(ARGV[i], from), keep)
    else
      finish_first_run(id, early, late, code, finished, ran, string.sub(ARGV[i], from), (struct.unpack('>I8', lives[i - 1], 55)))
    end
  end
  out[i - 1] = mine and 1 or 0
end
for lane, number in pairs(oks) do note_outcome(lane, 'ok', number) end
write()
if next(ends) and redis.call('EXISTS', K .. ':awaited', K .. ':unattended') > 0 then
  local attended = {}
  for id in pairs(ends) do
    tell_end(id)
    push(attended, id)
  end
  send('ZREM', K .. ':unattended', attended)
end
return out
