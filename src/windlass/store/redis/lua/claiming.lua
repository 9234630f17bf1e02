-- What the two scripts that lease jobs share; their arguments and their answer.
-- ARGV[2..]  nonce, '1' if it may be sent again, worker, node, lease (us), slots, tenant ('-' = all), '1' if the worker itself asks,
--            how long the wish stays if there is nothing (us), number of tasks (0 = any), number of what it is warm for;
--            task or tenant/task, …; tenant/task, …; queue, …
-- Output     now; then per job: id, its bytes as they were before, and only if its flags say so its errors and its files ('' = it
--            has output only). Whoever asked knows the rest. Of a claim sent again: nothing (''), then the jobs as usual, payload
--            included, with their files. Behind a job whose group is explicit or flexible: the seconds and name of its tier ('' = none).
-- With no slots at all it answers only what the same claim took before.
local nonce, repeatable, worker, node = ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5]
local lease, slots, tenant = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local heard, stays, known = ARGV[9] == '1', tonumber(ARGV[10]), tonumber(ARGV[11])
local first_queue = 13 + known + ARGV[12]
local tasks = known > 0 and {} or nil
for i = 13, 12 + known do tasks[ARGV[i]] = true end

local taken = { '' }
if heard then hear(worker, lease) end

-- Sent again: the jobs that this very claim took, or that were handed over to it, and that are still held.
local memory = memory_of(worker, nonce, ARGV[first_queue] or '')
local last = repeatable and redis.call('GET', memory)
if repeatable then redis.call('DEL', K .. ':wish:' .. nonce) end
if last then
  for from = 1, #last, 16 do
    local job = load(string.sub(last, from, from + 15), true)
    if job and job[STATE] == RUNNING and job.run[TOKEN] == nonce then
      answer(job, meta_of(job), taken)
      if has(job, EXTRAS) then push(taken, redis.call('GET', K .. 'f' .. job.id) or '') end
    end
  end
  if #taken > 1 then return taken end
end

local function knows(lane) return not tasks or tasks[lane.task] or tasks[lane.tenant .. '/' .. lane.task] end

local function before(a, b) return a.priority < b.priority or (a.priority == b.priority and a.seq < b.seq) end

-- The lanes of a line that the worker knows, from the first on: at most two unless it is choosy.
local function lanes_of(line, into)
  local found = redis.call('ZRANGE', K .. ':heads:' .. line, 0, tasks and -1 or 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local lane = string.sub(found[i], 9)
    if knows(lane_of(lane)) then
      into[#into + 1] = { lane = lane, priority = tonumber(found[i + 1]), seq = struct.unpack('>I8', found[i]) }
    end
  end
end

-- The best lane and the one after it. Lines beyond the first thousand wait their turn.
local function best(queue)
  local found = {}
  if tenant ~= '-' then
    lanes_of(tenant .. ',' .. queue, found)
  else
    for _, head in ipairs(redis.call('ZRANGE', K .. ':heads:' .. queue, 0, tasks and 999 or 1)) do
      lanes_of(string.sub(head, 9), found)
    end
  end
  table.sort(found, before)
  return found[1], found[2]
end

-- Take from one lane what comes before the first of the next. (Not by ZPOPMIN, which prints every score.)
local function pop(lane, rival, most)
  local ready = K .. ':ready:' .. lane.lane
  if rival then
    local found = redis.call('ZRANGE', ready, 0, most - 1, 'WITHSCORES')
    most = 0
    while most < #found / 2 do
      local mine = { priority = tonumber(found[2 * most + 2]), seq = struct.unpack('>I8', found[2 * most + 1]) }
      if not before(mine, rival) then break end
      most = most + 1
    end
  end
  local popped = redis.call('ZRANGE', ready, 0, most - 1)
  redis.call('ZREMRANGEBYRANK', ready, 0, most - 1)
  return popped
end

local until_, runs, leases = stamp(now + lease), {}, {}
local same = beginning_of(nonce) -- all runs of one claim begin alike

local function start(id, whose, route)
  local key = K .. 'j' .. id
  local value = redis.call('GET', key)
  if not value then return 0 end
  local flags = string.byte(value, 4)
  if bit.band(flags, STALE + PROGRESS) ~= 0 then
    local job = { id = id, key = key, [FLAGS] = flags }
    stop_waiting(job)
    forget_progress(job)
    redis.call('SETRANGE', key, '3', string.char(job[FLAGS]))
    value = string.sub(value, 1, 3) .. string.char(job[FLAGS]) .. string.sub(value, 5)
  end
  local n, told = #runs, #taken -- there are as many leases as runs
  runs[n + 1], runs[n + 2] = id, live_of(same, value, whose)
  leases[n + 1], leases[n + 2] = until_, id
  taken[told + 1], taken[told + 2] = id, value
  if bit.band(flags, ERRORS) ~= 0 then push(taken, redis.call('LRANGE', K .. 'e' .. id, 0, -1)) end
  if flags >= EXTRAS then push(taken, redis.call('GET', K .. 'f' .. id) or '') end
  if route.group then
    local tier = flow().take(route, id)
    if string.find(route.group, '^[=~]') then push(taken, tier) end
  end
  return 1
end

local ids = {}

local function start_all(route, popped)
  local whose, started = struct.pack('>sss', route.route, worker, node), 0
  for j = 1, #popped do
    local id = string.sub(popped[j], 9)
    ids[#ids + 1] = id
    started = started + start(id, whose, route)
  end
  route.counts[QUEUED] = (route.counts[QUEUED] or 0) - #popped
  route.counts[RUNNING] = (route.counts[RUNNING] or 0) + started
end

-- Where nothing but their order bounds what may be taken.
local function claim_in_order(queue)
  while #ids < slots do
    local first, rival = best(queue)
    if not first then return end
    local lane = lane_of(first.lane)
    local popped = pop(first, rival, slots - #ids)
    lift_lane(lane)
    start_all(lane, popped)
  end
end

local function finish()
  if #ids > 0 then
    send('HSET', K .. ':runs', runs)
    send('ZADD', K .. ':leases', leases)
    held[worker] = #runs / 2
    flush()
    if repeatable then remember(memory, table.concat(ids)) end
  end
  taken[1] = stamp(now)
  return taken
end
