-- What the two scripts that lease jobs share; their arguments and their answer.
-- ARGV[2..]  nonce, '1' if it may be sent again, worker, node, lease (us), slots, tenant ('-' = all), '1' if the worker itself asks,
--            how long the wish stays if there is nothing (us), number of tasks (0 = any), number of what it is warm for,
--            who takes turns in this claim (q queues, t tenants, k tasks), number of lines where they do not;
--            task or tenant/task, …; tenant/task, …; line ('-,queue' = all of a queue), …; queue, …
-- Output     now; then per job: id, its bytes as they were before, and only if its flags say so its errors and its files ('' = it
--            has output only). Whoever asked knows the rest. Of a claim sent again: nothing (''), then the jobs as usual, payload
--            included, with their files. Behind a job whose group is explicit or flexible: the seconds and name of its tier ('' = none).
-- With no slots at all it answers only what the same claim took before.
local nonce, repeatable, worker, node = ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5]
local lease, slots, tenant = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local heard, stays, known = ARGV[9] == '1', tonumber(ARGV[10]), tonumber(ARGV[11])
local turns, first_queue = ARGV[13], 15 + known + ARGV[12] + ARGV[14]
local tasks = known > 0 and {} or nil
for i = 15, 14 + known do tasks[ARGV[i]] = true end

local taken = { '' }
if heard then hear(worker, lease) end

-- What this very claim took before, or was handed over, if it is sent again.
local memory = memory_of(worker, nonce, ARGV[first_queue] or '')
local last = repeatable and redis.call('GET', memory)
if repeatable then redis.call('DEL', K .. ':wish:' .. nonce) end

local function knows(lane) return not tasks or tasks[lane.task] or tasks[lane.tenant .. '/' .. lane.task] end

local function before(a, b) return a.priority < b.priority or (a.priority == b.priority and a.seq < b.seq) end

-- The lanes of a line that the worker knows, from the first on: at most two unless it is choosy. Each with its member in the heads;
-- the first of them all also with what comes after it there.
local function lanes_of(line, into)
  local found = redis.call('ZRANGE', K .. ':heads:' .. line, '0', tasks and '-1' or '1', 'WITHSCORES')
  for i = 1, #found, 2 do
    local seat = found[i]
    local lane = string.sub(seat, 9)
    if knows(lane_of(lane)) then
      local spot = { lane = lane, priority = tonumber(found[i + 1]), seq = struct.unpack('>I8', seat), seat = seat }
      if i == 1 then spot.leads, spot.after, spot.score_after = true, found[3], found[4] end
      into[#into + 1] = spot
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

-- Take from one lane what comes before the first of the next. (Not by ZPOPMIN, which prints every score.) Also what is first then, with
-- its score.
local function pop(lane, rival, most)
  local ready = K .. ':ready:' .. lane.lane
  if not rival and most > 1 then
    local popped = redis.call('ZRANGE', ready, '0', most - 1)
    redis.call('ZREMRANGEBYRANK', ready, '0', most - 1)
    local first = redis.call('ZRANGE', ready, '0', '0', 'WITHSCORES')
    return popped, first[1], first[2]
  end
  local found, popped = redis.call('ZRANGE', ready, '0', tostring(most), 'WITHSCORES'), {}
  while #popped < most and 2 * #popped < #found do
    local at = 2 * #popped
    if rival and not before({ priority = tonumber(found[at + 2]), seq = struct.unpack('>I8', found[at + 1]) }, rival) then break end
    popped[#popped + 1] = found[at + 1]
  end
  if #popped > 0 then redis.call('ZREMRANGEBYRANK', ready, '0', tostring(#popped - 1)) end
  return popped, found[2 * #popped + 1], found[2 * #popped + 2]
end

-- As `lift`, of a lane and its line that the first jobs were taken from: what was there is known.
local function lift_after(spot, lane, first, score)
  local heads, tops, above = K .. ':heads:' .. lane.line, {}, K .. ':heads:' .. lane.queue
  local seat = first and string.sub(first, 1, 8) .. lane.route
  redis.call('ZREM', heads, spot.seat)
  if seat then
    redis.call('ZADD', heads, score, seat)
    push(tops, lane.route, score .. ' ' .. seat)
  else
    redis.call('HDEL', K .. ':tops', lane.route)
  end
  if spot.leads then
    local after = spot.after and { priority = tonumber(spot.score_after), seq = struct.unpack('>I8', spot.after) }
    if after and not (seat and before({ priority = tonumber(score), seq = struct.unpack('>I8', seat) }, after)) then
      seat, score = spot.after, spot.score_after
    end
    redis.call('ZREM', above, string.sub(spot.seat, 1, 8) .. lane.line)
    if seat then
      seat = string.sub(seat, 1, 8) .. lane.line
      redis.call('ZADD', above, score, seat)
      push(tops, lane.line, score .. ' ' .. seat)
    else
      redis.call('HDEL', K .. ':tops', lane.line)
    end
  end
  send('HSET', K .. ':tops', tops)
end

local until_, runs, leases = stamp(now + lease), {}, {}
local same = beginning_of(nonce) -- all runs of one claim begin alike

local function start(id, value, whose, route)
  if not value then return 0 end
  local flags = string.byte(value, 4)
  if flags > 0 and bit.band(flags, STALE + PROGRESS) ~= 0 then
    local job = { id = id, [FLAGS] = flags }
    stop_waiting(job)
    forget_progress(job)
    redis.call('SETRANGE', K .. 'j' .. id, '3', string.char(job[FLAGS]))
    value = string.sub(value, 1, 3) .. string.char(job[FLAGS]) .. string.sub(value, 5)
  end
  local n, told = #runs, #taken -- there are as many leases as runs
  runs[n + 1], runs[n + 2] = id, live_of(same, value, whose)
  leases[n + 1], leases[n + 2] = until_, id
  taken[told + 1], taken[told + 2] = id, value
  if flags > 0 and bit.band(flags, ERRORS) ~= 0 then push(taken, redis.call('LRANGE', K .. 'e' .. id, 0, -1)) end
  if flags >= EXTRAS then push(taken, redis.call('GET', K .. 'f' .. id) or '') end
  if route.group then
    local tier = flow().take(route, id)
    if string.find(route.group, '^[=~]') then push(taken, tier) end
  end
  return 1
end

local ids = {}

local function start_all(route, popped)
  local whose, started, own = struct.pack('>sss', route.route, worker, node), 0, {}
  for j = 1, #popped do
    popped[j] = string.sub(popped[j], 9)
    own[j] = K .. 'j' .. popped[j]
  end
  local values = #own > 0 and redis.call('MGET', unpack(own)) or {}
  for j = 1, #popped do
    ids[#ids + 1] = popped[j]
    started = started + start(popped[j], values[j], whose, route)
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
    local popped, next_one, score = pop(first, rival, slots - #ids)
    lift_after(first, lane, next_one, score)
    start_all(lane, popped)
  end
end

-- Turns within this claim, where no rule says who takes any. Whoever takes part has a name and members, or is narrowed down to a queue,
-- a tenant and tasks.

local function takes_turns(letter) return string.find(turns, letter, 1, true) ~= nil end

-- As `store.shuffled`.
local function shuffle(members)
  if #members < 2 then return members end
  for i = 1, #members do members[i].chance = redis.sha1hex(nonce .. members[i].name) end
  table.sort(members, function(a, b) return a.chance < b.chance end)
  return members
end

local function part_of_line(line, queue, strict)
  local whose = string.match(line, '^[^,]*')
  local part = { name = line, queue = queue, tenant = whose, tasks = tasks }
  if not takes_turns('k') or strict[line] or (mode_of(queue) and flow().fair_line({ line = line, queue = queue })) then return part end
  part.members = {}
  for _, seat in ipairs(redis.call('ZRANGE', K .. ':heads:' .. line, '0', '-1')) do
    local lane = lane_of(string.sub(seat, 9))
    if knows(lane) then
      push(part.members, { name = lane.name, queue = queue, tenant = whose, tasks = { [whose .. '/' .. lane.task] = true } })
    end
  end
  shuffle(part.members)
  return part
end

local function part_of_queue(queue, strict)
  local part = { name = queue, queue = queue, tenant = tenant, tasks = tasks }
  if not (takes_turns('t') or takes_turns('k')) or strict['-,' .. queue] then return part end
  if mode_of(queue) and flow().lets(queue, 'q') then return part end
  part.members = {}
  if tenant ~= '-' then
    push(part.members, part_of_line(tenant .. ',' .. queue, queue, strict))
  else
    for _, head in ipairs(redis.call('ZRANGE', K .. ':heads:' .. queue, '0', '999')) do
      push(part.members, part_of_line(string.sub(head, 9), queue, strict))
    end
  end
  shuffle(part.members)
  return part
end

-- All of it: one whose members are the queues that take turns, or one for each queue.
local function parts_of_claim()
  local strict, parts = {}, {}
  for i = first_queue - ARGV[14], first_queue - 1 do strict[ARGV[i]] = true end
  for i = first_queue, #ARGV do push(parts, part_of_queue(ARGV[i], strict)) end
  return takes_turns('q') and { { members = shuffle(parts) } } or parts
end

-- Take so many for one that is narrowed down, if there are as many.
local function claim_part(part, most, claim)
  local all, everybody, every = slots, tenant, tasks
  slots, tenant, tasks = #ids + most, part.tenant, part.tasks
  claim(part.queue)
  slots, tenant, tasks = all, everybody, every
end

-- What a claim answers, once what it changed is written.
local function finish(write)
  if #ids > 0 then
    send('HSET', K .. ':runs', runs)
    send('ZADD', K .. ':leases', leases)
    held[worker] = #runs / 2
    write()
    if repeatable then
      for i = 1, #ids do ids[i] = sized(ids[i]) end
      remember(memory, table.concat(ids))
    end
  end
  taken[1] = stamp(now)
  return taken
end
