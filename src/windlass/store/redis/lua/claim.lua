-- Claims: leasing the first jobs that a worker may take, parking a claim that finds none.

do

-- The heads of a tenant queue hold plain lanes (keys.lua). Where no flow control is in force, a plain lane is a lane.

local MOST_TRIES = 200 -- lanes that one call blocks before it ends: other callers wait
local LEAD, NEAR = 2, 16 -- as in store/flow.py
local MOST_TENANT_QUEUES = '999' -- tenant queues of a queue that a claim looks at, counted from 0

local BUDGET_SPENT = 1 -- the answer of a call that only blocked lanes

-- The claim that is being answered: what it asks for (`read_claim`), `ids` of the jobs it has taken, `runs` and `leases`
-- of these as commands take them, `answer`, and `tries` left.
local claim

local function read_claim(args)
  local known, warm, strict = tonumber(args[11]), tonumber(args[12]), tonumber(args[14])
  claim = {
    nonce = args[2], repeatable = args[3] == '1', worker = args[4], node = args[5],
    lease = tonumber(args[6]), slots = tonumber(args[7]), tenant = args[8],
    heard = args[9] == '1', stays = tonumber(args[10]), turns = args[13],
    tasks = known > 0 and {} or nil, names = { unpack(args, 15, 14 + known) },
    warm = warm > 0 and {} or nil, warm_tenants = {}, strict = {},
    queues = { unpack(args, 15 + known + warm + strict) },
    ids = {}, runs = {}, leases = {}, answer = { '' }, tries = MOST_TRIES,
  }
  for _, name in ipairs(claim.names) do claim.tasks[name] = true end
  for i = 15 + known, 14 + known + warm do
    claim.warm[args[i]] = true
    claim.warm_tenants[string.match(args[i], '^[^/]*')] = true
  end
  for i = 15 + known + warm, 14 + known + warm + strict do claim.strict[args[i]] = true end
  claim.until_ = stamp(now + claim.lease)
  claim.beginning = beginning_of(claim.nonce)
end

local function knows(lane)
  local tasks = claim.tasks
  return not tasks or tasks[lane.task] or tasks[lane.tenant .. '/' .. lane.task]
end

local function is_warm(lane) return claim.warm[lane.tenant .. '/' .. lane.task] end

-- Whether a place in the heads comes before another one.
local function before(a, b) return a.priority < b.priority or (a.priority == b.priority and a.seq < b.seq) end

local function spot(seat, priority)
  return { lane = string.sub(seat, 9), priority = tonumber(priority), seq = struct.unpack('>I8', seat), seat = seat }
end

-- Taking jobs

-- Add to `into` the lanes of a tenant queue that the worker knows, first ones first: two at most unless it knows only some
-- tasks. The first of the whole tenant queue also knows what comes after it there.
local function lanes_of(tenant_queue, into)
  local found = redis.call('ZRANGE', K .. ':heads:' .. tenant_queue, '0', claim.tasks and '-1' or '1', 'WITHSCORES')
  for i = 1, #found, 2 do
    local seat = found[i]
    if knows(lane_of(string.sub(seat, 9))) then
      local one = spot(seat, found[i + 1])
      if i == 1 then one.leads, one.after, one.score_after = true, found[3], found[4] end
      into[#into + 1] = one
    end
  end
end

-- The first lane of a queue and the one after it. Tenant queues beyond the first thousand wait their turn.
local function first_lanes(queue)
  local found = {}
  if claim.tenant ~= '-' then
    lanes_of(claim.tenant .. ',' .. queue, found)
  else
    for _, head in ipairs(redis.call('ZRANGE', K .. ':heads:' .. queue, '0', claim.tasks and MOST_TENANT_QUEUES or '1')) do
      lanes_of(string.sub(head, 9), found)
    end
  end
  table.sort(found, before)
  return found[1], found[2]
end

-- Take from one lane the jobs that come before the first of its rival. (Not by ZPOPMIN, which prints every score.)
-- Returns: their members, and the member and score of the job that is first now.
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

-- Like `lift`, for a lane and its tenant queue from which the first jobs were taken: what was there is known.
local function lift_after(taken, lane, first, score)
  local heads, tops, above = K .. ':heads:' .. lane.tenant_queue, {}, K .. ':heads:' .. lane.queue
  local seat = first and string.sub(first, 1, 8) .. lane.name
  redis.call('ZREM', heads, taken.seat)
  if seat then
    redis.call('ZADD', heads, score, seat)
    push(tops, lane.name, score .. ' ' .. seat)
  else
    redis.call('HDEL', K .. ':tops', lane.name)
  end
  if taken.leads then
    local after = taken.after and spot(taken.after, taken.score_after)
    if after and not (seat and before(spot(seat, score), after)) then seat, score = taken.after, taken.score_after end
    redis.call('ZREM', above, string.sub(taken.seat, 1, 8) .. lane.tenant_queue)
    if seat then
      seat = string.sub(seat, 1, 8) .. lane.tenant_queue
      redis.call('ZADD', above, score, seat)
      push(tops, lane.tenant_queue, score .. ' ' .. seat)
    else
      redis.call('HDEL', K .. ':tops', lane.tenant_queue)
    end
  end
  send('HSET', K .. ':tops', tops)
end

-- Start one job. Returns: 1, or 0 if it has vanished.
local function start(id, value, whose, lane)
  if not value then return 0 end
  local flags = string.byte(value, 4)
  if flags > 0 and bit.band(flags, STALE + PROGRESS) ~= 0 then
    local job = { id = id, [FLAGS] = flags }
    stop_waiting(job)
    forget_progress(job)
    redis.call('SETRANGE', K .. 'j' .. id, '3', string.char(job[FLAGS]))
    value = string.sub(value, 1, 3) .. string.char(job[FLAGS]) .. string.sub(value, 5)
  end
  local runs, leases, answer = claim.runs, claim.leases, claim.answer
  local n, answered = #runs, #answer -- there are as many leases as runs
  runs[n + 1], runs[n + 2] = id, live_of(claim.beginning, value, whose)
  leases[n + 1], leases[n + 2] = claim.until_, id
  answer[answered + 1], answer[answered + 2] = id, value
  if flags > 0 and bit.band(flags, ERRORS) ~= 0 then push(answer, redis.call('LRANGE', K .. 'e' .. id, 0, -1)) end
  if flags >= EXTRAS then push(answer, redis.call('GET', K .. 'n' .. id) or '', redis.call('GET', K .. 'f' .. id) or '') end
  if lane.limit_keys then
    local tier = flow.start(lane, id)
    if string.find(lane.limit_keys, '^[=~]') then push(answer, tier) end
  end
  return 1
end

local function start_all(lane, popped)
  local whose, started, own, ids = struct.pack('>sss', lane.name, claim.worker, claim.node), 0, {}, claim.ids
  for j = 1, #popped do
    popped[j] = string.sub(popped[j], 9)
    own[j] = K .. 'j' .. popped[j]
  end
  local values = #own > 0 and redis.call('MGET', unpack(own)) or {}
  for j = 1, #popped do
    ids[#ids + 1] = popped[j]
    started = started + start(popped[j], values[j], whose, lane)
  end
  lane.counts[QUEUED] = (lane.counts[QUEUED] or 0) - #popped
  lane.counts[RUNNING] = (lane.counts[RUNNING] or 0) + started
end

-- Take jobs of a queue where only their order decides.
local function claim_in_order(queue)
  while #claim.ids < claim.slots do
    local first, rival = first_lanes(queue)
    if not first then return end
    local lane = lane_of(first.lane)
    local popped, next_one, score = pop(first, rival, claim.slots - #claim.ids)
    lift_after(first, lane, next_one, score)
    start_all(lane, popped)
  end
end

-- Taking jobs of a queue with flow control

-- Members of a level in the order of their tags, with these: all if the worker knows only some tasks, else those whose
-- turn may be now.
local function members(level, all)
  return redis.call('ZRANGE', K .. ':tags:' .. level, 0, claim.tasks and all or claim.warm and NEAR - 1 or 0, 'WITHSCORES')
end

-- The lanes of a tenant queue that the worker knows, as `lanes_of`. Where they take turns: the lane whose turn it is, or one
-- near its turn that the worker is warm for. `turn` = the tag of the lane whose turn it is.
local function lanes_in_turn(tenant_queue, queue, into)
  if not flow.fair_name({ tenant_queue = tenant_queue, queue = queue }) then return lanes_of(tenant_queue, into) end
  local warm, found, best, turn, seen = claim.warm, members(tenant_queue, -1), nil, nil, 0
  for i = 1, #found, 2 do
    local lane, tag = lane_of(string.sub(found[i], 9)), tonumber(found[i + 1])
    if turn and (not warm or tag >= turn + LEAD or seen == NEAR) then break end
    if knows(lane) then
      best, turn, seen = best or lane, turn or tag, seen + 1
      if warm and is_warm(lane) then
        best = lane
        break
      end
    end
  end
  if not best then return end
  local first = flow.first_of(best)
  push(into, { lane = best.name, priority = tonumber(first[2]), seq = struct.unpack('>I8', first[1]), turn = turn })
end

-- Where tenants take turns: the first lane of the tenant whose turn it is, or of one near its turn that the worker is warm
-- for; and the next lane of the same tenant.
local function turn_of_tenants(queue)
  local warm, found, best, turn, seen = claim.warm, members(queue, 999), nil, nil, 0
  for i = 1, #found, 2 do
    local tenant_queue, tag = string.sub(found[i], 9), tonumber(found[i + 1])
    if best and (not warm or tag >= turn + LEAD or seen == NEAR) then break end
    if not best or claim.warm_tenants[string.match(tenant_queue, '^[^,]*')] then
      local its_lanes = {}
      lanes_in_turn(tenant_queue, queue, its_lanes)
      table.sort(its_lanes, before)
      if its_lanes[1] then
        local is_preferred = warm and is_warm(lane_of(its_lanes[1].lane))
        turn = turn or tag
        if is_preferred or not best then best = its_lanes end
        if is_preferred then break end
      end
    end
    if best then seen = seen + 1 end
  end
  if not best then return nil end
  best[1].turn_of_tenant = turn
  return best[1], best[2]
end

-- The lane whose turn it is, and the one after it where they do not take turns.
local function next_lane(queue)
  local found = {}
  if claim.tenant ~= '-' then
    local tenant_queue = claim.tenant .. ',' .. queue
    local blocked = flow.has_mode(queue, 's') and redis.call('HGET', K .. ':blocker_of', tenant_queue)
    if not blocked then lanes_in_turn(tenant_queue, queue, found) end
  elseif flow.has_mode(queue, 'q') then
    return turn_of_tenants(queue)
  else
    for _, head in ipairs(redis.call('ZRANGE', K .. ':heads:' .. queue, '0', claim.tasks and MOST_TENANT_QUEUES or '1')) do
      lanes_in_turn(string.sub(head, 9), queue, found)
    end
  end
  table.sort(found, before)
  return found[1], found[2]
end

-- The first lane of a plain lane's, and the one that comes after it.
local function first_of_plain(plain)
  local ready = redis.call('ZRANGE', K .. ':ready:' .. plain.name, 0, 0, 'WITHSCORES')
  local limited = redis.call('ZRANGE', K .. ':heads:' .. plain.name, 0, 1, 'WITHSCORES')
  local own = ready[1] and spot(string.sub(ready[1], 1, 8) .. plain.name, ready[2])
  local first, second = limited[1] and spot(limited[1], limited[2]), limited[3] and spot(limited[3], limited[4])
  if not first or (own and before(own, first)) then return own, first end
  return first, own and (not second or before(own, second)) and own or second
end

-- Take what may be taken of a plain lane before its rival comes; block the lanes whose limits are full.
local function take_from(plain, rival, turns)
  local in_turns = flow.has_mode(plain.queue, 'q') or flow.fair_name(plain)
  while claim.tries > 0 and #claim.ids < claim.slots do
    local first, next_one = first_of_plain(plain)
    if not first or (rival and before(rival, first)) then break end
    if rival and (not next_one or before(rival, next_one)) then next_one = rival end
    local lane = lane_of(first.lane)
    local most, blocker, at = claim.slots - #claim.ids, nil, nil
    if lane.limit_keys then
      local free
      free, blocker, at = flow.admit(lane)
      most = math.min(most, free)
    end
    if most > 0 then
      if in_turns then
        most = 1
        flow.serve(plain, turns)
      end
      start_all(lane, (pop(first, next_one, most)))
      flow.settle_lane(lane)
      if in_turns then break end
    else
      flow.block_lane(lane, blocker, at)
      claim.tries = claim.tries - 1
    end
  end
  flow.settle_plain(plain)
end

local function claim_in_flow(queue)
  flow.unblock_due(flow.FEW)
  if flow.queue_paused_until(queue) then return end
  while claim.tries > 0 and #claim.ids < claim.slots do
    local first, rival = next_lane(queue)
    if not first then return end
    local plain = lane_of(first.lane)
    if flow.block_if_paused(plain) then claim.tries = claim.tries - 1 else take_from(plain, rival, first) end
  end
end

local function claim_from(queue)
  if mode_of(queue) then claim_in_flow(queue) else claim_in_order(queue) end
end

-- Turns within this claim, where no rule decides them. A part has a name and members, or is one queue, one tenant or all,
-- and some tasks or all.

local function takes_turns(letter) return string.find(claim.turns, letter, 1, true) ~= nil end

-- As `store.shuffled`.
local function shuffle(parts)
  if #parts < 2 then return parts end
  for i = 1, #parts do parts[i].chance = redis.sha1hex(claim.nonce .. parts[i].name) end
  table.sort(parts, function(a, b) return a.chance < b.chance end)
  return parts
end

local function part_of(tenant_queue, queue)
  local tenant = string.match(tenant_queue, '^[^,]*')
  local part = { name = tenant_queue, queue = queue, tenant = tenant, tasks = claim.tasks }
  local is_fair = mode_of(queue) and flow.fair_name({ tenant_queue = tenant_queue, queue = queue })
  if not takes_turns('k') or claim.strict[tenant_queue] or is_fair then return part end
  part.members = {}
  for _, seat in ipairs(redis.call('ZRANGE', K .. ':heads:' .. tenant_queue, '0', '-1')) do
    local lane = lane_of(string.sub(seat, 9))
    if knows(lane) then
      push(part.members, { name = lane.plain, queue = queue, tenant = tenant, tasks = { [tenant .. '/' .. lane.task] = true } })
    end
  end
  shuffle(part.members)
  return part
end

local function part_of_queue(queue)
  local part = { name = queue, queue = queue, tenant = claim.tenant, tasks = claim.tasks }
  if not (takes_turns('t') or takes_turns('k')) or claim.strict['-,' .. queue] then return part end
  if mode_of(queue) and flow.has_mode(queue, 'q') then return part end
  part.members = {}
  if claim.tenant ~= '-' then
    push(part.members, part_of(claim.tenant .. ',' .. queue, queue))
  else
    for _, head in ipairs(redis.call('ZRANGE', K .. ':heads:' .. queue, '0', MOST_TENANT_QUEUES)) do
      push(part.members, part_of(string.sub(head, 9), queue))
    end
  end
  shuffle(part.members)
  return part
end

-- All of the claim: one part whose members are the queues that take turns, or one part per queue.
local function parts_of_claim()
  local parts, known = {}, {}
  for _, queue in ipairs(claim.queues) do
    local part = known[queue]
    if part then -- a queue that has several turns is named several times
      part.turns = part.turns + 1
      push(parts, { name = queue .. '#' .. (part.turns - 1), members = { part }, again = part })
    else
      known[queue] = part_of_queue(queue)
      known[queue].turns = 1
      push(parts, known[queue])
    end
  end
  return takes_turns('q') and { { members = shuffle(parts) } } or parts
end

-- Take up to so many jobs of a part without members.
local function claim_part(part, most)
  local slots, tenant, tasks = claim.slots, claim.tenant, claim.tasks
  claim.slots, claim.tenant, claim.tasks = #claim.ids + most, part.tenant, part.tasks
  claim_from(part.queue)
  claim.slots, claim.tenant, claim.tasks = slots, tenant, tasks
end

-- One job of the member whose turn it is; whether there was one.
local function take_turn(part)
  if not part.members then
    local taken = #claim.ids
    claim_part(part, 1)
    return #claim.ids > taken
  end
  while claim.tries > 0 and #part.members > 0 do
    local one = table.remove(part.members, 1)
    if take_turn(one) then
      push(part.members, one)
      return true
    end
  end
  return false
end

-- How many jobs a part without flow control has, at most so many.
local function count_of(part, most)
  local number = 0
  if part.members then
    for _, one in ipairs(part.members) do
      if number >= most then return most end
      number = number + count_of(one, most - number)
    end
    return number
  end
  local every, tenant_queues = claim.tasks, { part.tenant .. ',' .. part.queue }
  if part.tenant == '-' then
    tenant_queues = redis.call('ZRANGE', K .. ':heads:' .. part.queue, '0', MOST_TENANT_QUEUES)
    for i = 1, #tenant_queues do tenant_queues[i] = string.sub(tenant_queues[i], 9) end
  end
  claim.tasks = part.tasks
  for _, tenant_queue in ipairs(tenant_queues) do
    for _, seat in ipairs(redis.call('ZRANGE', K .. ':heads:' .. tenant_queue, '0', '-1')) do
      local lane = string.sub(seat, 9)
      if number < most and knows(lane_of(lane)) then number = number + redis.call('ZCARD', K .. ':ready:' .. lane) end
    end
  end
  claim.tasks = every
  return math.min(number, most)
end

-- Share so many slots where nothing bounds the jobs: the same jobs that one `take_turn` after the other takes, in a few
-- commands per member instead of some per job.
local function share(part, room)
  if not part.members then return claim_part(part, room) end
  if #part.members == 1 then return share(part.members[1], room) end
  local some, counts, parts, counted = {}, {}, {}, {}
  for _, one in ipairs(part.members) do
    local whose = one.again or one
    counted[whose] = counted[whose] or { left = #some < room and count_of(whose, room) or 0 }
    if counted[whose].left > 0 then
      push(some, one)
      push(counts, counted[whose])
      push(parts, 0)
    end
  end
  local given = true
  while room > 0 and given do
    given = false
    for i = 1, #some do
      if room > 0 and counts[i].left > 0 then
        parts[i], room, given = parts[i] + 1, room - 1, true
        counts[i].left = counts[i].left - 1
      end
    end
  end
  for i = 1, #some do
    if parts[i] > 0 then share(some[i], parts[i]) end
  end
end

-- Claims that are sent again, and claims that wait

-- Answer the jobs that this very claim took before and still holds; whether there are any.
local function answer_again(memory)
  local last = redis.call('GET', memory)
  redis.call('DEL', K .. ':parked_claim:' .. claim.nonce)
  local from = 1
  while last and from <= #last do
    local size = string.byte(last, from)
    local job = load(string.sub(last, from + 1, from + size), true)
    from = from + 1 + size
    if job and job[STATE] == RUNNING and job.run[TOKEN] == claim.nonce then
      answer(job, meta_of(job), claim.answer)
      if has(job, EXTRAS) then push(claim.answer, redis.call('GET', K .. 'f' .. job.id) or '') end
    end
  end
  return #claim.answer > 1
end

local function between_commas(names) return #names > 0 and ',' .. table.concat(names, ',') .. ',' or '' end

-- Park the claim for so long. Those that have waited long enough are dropped on the way.
local function park()
  for _, queue in ipairs(claim.queues) do
    redis.call('ZREMRANGEBYSCORE', K .. ':parked_claims:' .. queue, '-inf', stamp(now))
    redis.call('ZADD', K .. ':parked_claims:' .. queue, stamp(now + claim.stays), claim.nonce)
  end
  local packed = struct.pack(PARKED_CLAIM, claim.lease, claim.tenant, claim.worker, claim.node, between_commas(claim.names),
    between_commas(claim.queues))
  redis.call('SET', K .. ':parked_claim:' .. claim.nonce, packed, 'PX', stamp(math.ceil(claim.stays / 1000)))
end

-- Whether flow control has a say in one of the queues.
local function is_bounded()
  if #claim.queues == 0 then return false end
  local found, bounded = redis.call('HMGET', K .. ':flow', '*', unpack(claim.queues)), false
  for i, queue in ipairs(claim.queues) do
    local own, every = found[i + 1], found[1]
    modes[queue] = (own or every) and (own or '') .. (every or '') or false
    bounded = bounded or modes[queue]
  end
  return bounded
end

-- Take jobs queue by queue, or by turns.
local function take(bounded)
  if claim.turns == '' then
    for _, queue in ipairs(claim.queues) do claim_from(queue) end
  elseif bounded then
    flow.unblock_due(flow.FEW)
    for _, part in ipairs(parts_of_claim()) do
      while claim.tries > 0 and #claim.ids < claim.slots and take_turn(part) do end
    end
  else
    for _, part in ipairs(parts_of_claim()) do
      if #claim.ids < claim.slots then share(part, claim.slots - #claim.ids) end
    end
  end
end

-- Lease the first jobs that a worker may take.
-- args →  nonce, '1' if it may be sent again, worker, node, lease (us), slots, tenant ('-' = all), '1' if the worker itself
--         asks, how long the claim is parked if there is nothing (us), number of tasks (0 = any), number of tasks it is warm
--         for, who takes turns in this claim (q queues, t tenants, k tasks), number of tenant queues where they do not;
--         task or tenant/task, …; tenant/task, …; tenant queue ('-,queue' = all of a queue), …; queue, …
--         With no slots it answers only what the same claim took before.
-- returns →  now; then per job: id, its bytes as they were before, and only if its flags say so its errors and its files
--         ('' = it has output only); behind a job with an explicit or flexible tier: the seconds and name of the tier
--         ('' = none). For a claim sent again: '', then the jobs as `answer` makes them, payload included, with their files.
--         Or BUDGET_SPENT: it took nothing, but is to be sent again at once.
register('claim', FREES_MEMORY, function(args)
  read_claim(args)
  if claim.heard then note_seen(claim.worker, claim.lease) end
  local memory = memory_of(claim.worker, claim.nonce, claim.queues[1] or '')
  if claim.repeatable and answer_again(memory) then return claim.answer end
  local bounded = is_bounded()
  take(bounded)
  local taken = #claim.ids
  if claim.tries == 0 and taken < claim.slots then
    -- What comes next may be free all the same. A call must end some time: others wait.
    if taken == 0 then return BUDGET_SPENT end
    for _, queue in ipairs(claim.queues) do publish('work/' .. queue) end
  end
  if taken > 0 then
    send('HSET', K .. ':runs', claim.runs)
    send('ZADD', K .. ':leases', claim.leases)
    held[claim.worker] = #claim.runs / 2
    flush()
    if claim.repeatable then
      local ids = claim.ids
      for i = 1, #ids do ids[i] = sized(ids[i]) end
      remember(memory, table.concat(ids))
    end
  elseif claim.slots > 0 and claim.stays > 0 and not bounded then
    park()
  end
  flow.end_rounds()
  claim.answer[1] = stamp(now)
  return claim.answer
end)

end
