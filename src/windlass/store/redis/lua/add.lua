-- Keep new jobs.
-- ARGV[2..]  grouping; owner clocks ('' = none, else '>Ii8' per job that has one: its number from 1, us); number of lines; line, jobs of it, …; then per job: meta, body; its files, what is to follow it and
--            how its result is kept (HOLD) if its flags say so; the ids that it waits for if it is blocked
--            meta = id (16) .. '>iBdi8i8i8IHI': priority, flags (of keep_result, EXTRAS = files), keep_success (-1 = for ever), run_at
--            (below AGES = blocked), delay,
--            expires (-1 = never), size of terms, line (from 0), place among the batch's jobs of that line (from 0)
--            body = route, zero byte, terms, payload
-- Output     for each job 1 if it is new, else 0
if (redis.call('HGET', K .. ':flow', '#') or '0') ~= ARGV[2] then return refuse_rules() end
local AGES = -90000000000000000
local lines, tenants, base, unattended = {}, {}, {}, {}
local at, jobs = 5, 0
for i = 1, #ARGV[3], 12 do
  local number, span = struct.unpack('>Ii8', ARGV[3], i)
  unattended[number] = span
end
for i = 0, tonumber(ARGV[4]) - 1 do
  lines[i], tenants[i] = ARGV[at], string.match(ARGV[at], '^[^,]*')
  base[i] = redis.call('HINCRBY', K .. ':pos', ARGV[at], ARGV[at + 1]) - ARGV[at + 1] + 1
  jobs = jobs + ARGV[at + 1]
  at = at + 2
end
local seq = redis.call('INCRBY', K .. ':seq', jobs) - jobs

-- What comes with a job beside its bytes: the letters of the keys, in the order of the arguments.
local function extras_of(flags, state)
  local kinds = {}
  if flags >= EXTRAS then push(kinds, 'f') end
  if bit.band(flags, FOLLOWED) ~= 0 then push(kinds, 't') end
  if bit.band(flags, TIMED) == TIMED then push(kinds, 'h') end
  if state == BLOCKED then push(kinds, 'a') end
  return kinds
end

local function keep_extras(id, kinds, to)
  for n, kind in ipairs(kinds) do redis.call('SET', K .. kind .. id, ARGV[to - #kinds + n - 1]) end
end

local created, queues, opened = {}, {}, {}

-- Neighbours mostly differ in nothing but their ids, places and payloads: what follows from the rest is worked out once.
local shared, state, line, flags, priority, due, expires, before, behind, extras
local function read(meta)
  local keep, delay, terms_size
  shared = meta
  priority, flags, keep, due, delay, expires, terms_size, line = struct.unpack('>iBdi8i8i8IH', meta)
  if delay > 0 then due = now + delay end
  state = SCHEDULED
  if due < AGES then state, due = BLOCKED, 0 elseif due <= now then state, due = QUEUED, 0 end
  if expires >= 0 then flags = flags + STALE end
  before = struct.pack('>BBBBIBBI8I8HIi', 1, state, 0, flags, 0, 0, 0, now, due, 0, terms_size, priority)
  behind = struct.pack('>I8d', now, keep)
  priority = tostring(priority)
  extras = (flags >= TIMED or state == BLOCKED) and extras_of(flags, state)
end

-- The lane of a job, and where the job is listed.
local route, lane, chunk, listed = '', nil, nil, nil
local function turn_to(body, pos)
  if string.sub(body, 1, #route) ~= route or route == '' then
    route = string.sub(body, 1, string.find(body, '\0', 1, true))
    lane, chunk = lane_of(string.sub(route, 1, -2)), nil
    if state == QUEUED then queues[lane.queue] = true end
  end
  if chunk == chunk_of(pos) then return end
  chunk = chunk_of(pos)
  listed = in_(in_(in_(lane, 'into'), PENDING), chunk)
  in_(opened, line)[chunk] = true
end

for i = 1, jobs do
  local meta, body = ARGV[at], ARGV[at + 1]
  at = at + 2
  local rest = string.sub(meta, 17, -5)
  if rest ~= shared then
    read(rest)
    route = ''
  end
  local id = key_of(id_of(meta), tenants[line])
  if extras then at = at + #extras end
  local seq8, pos = struct.pack('>I8', seq + i), base[line] + struct.unpack('>I', meta, 60)
  if redis.call('SET', K .. 'j' .. id, before .. seq8 .. struct.pack('>I8', pos) .. behind .. body, 'NX') then
    created[i] = 1
    if extras then keep_extras(id, extras, at) end
    turn_to(body, pos)
    if state == QUEUED then
      lane.counts[QUEUED] = (lane.counts[QUEUED] or 0) + 1
      push(in_(lane, 'ready'), priority, seq8 .. id)
    else
      enter_as(lane, state, id, priority, seq + i, state == BLOCKED and pos or due)
    end
    push(listed, place_of(pos), id)
    if expires >= 0 then push(in_(added, ':stale'), now + expires, id) end
    if unattended[i] then push(in_(added, ':unattended'), now + unattended[i], id) end
  else
    created[i] = 0
  end
end
flush()
for line, name in pairs(lines) do
  if opened[line] then
    redis.call('ZADD', K .. ':lines', 0, name)
    redis.call('SADD', K .. ':tenants', tenants[line])
    for chunk in pairs(opened[line]) do redis.call('ZADD', K .. ':chunks:' .. name, chunk, chunk) end
  end
end
for queue in pairs(queues) do publish('work/' .. queue) end
return created
