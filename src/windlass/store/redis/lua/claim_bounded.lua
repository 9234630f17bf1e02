-- Lease the first jobs that a worker may take where flow control bounds them: see claiming.lua and flow.lua.
-- Output  1 if it took nothing, but is to be asked again at once

-- Sent again: those that are still held.
if last then
  local from = 1
  while from <= #last do
    local size = string.byte(last, from)
    local job = load(string.sub(last, from + 1, from + size), true)
    from = from + 1 + size
    if job and job[STATE] == RUNNING and job.run[TOKEN] == nonce then
      answer(job, meta_of(job), taken)
      if has(job, EXTRAS) then push(taken, redis.call('GET', K .. 'f' .. job.id) or '') end
    end
  end
  if #taken > 1 then return taken end
end

local MOST_TRIES = 200
local LEAD, NEAR = 2, 16 -- as in store/flow.py

local tries = MOST_TRIES

-- What the worker would rather run, and whose that is; nil = it has no wish.
local warm, warm_tenants = nil, {}
for i = 15 + known, 14 + known + ARGV[12] do
  warm = warm or {}
  warm[ARGV[i]] = true
  warm_tenants[string.match(ARGV[i], '^[^/]*')] = true
end
local function is_warm(lane) return warm[lane.tenant .. '/' .. lane.task] end

local function claim_in_flow(queue)
  local control = flow()
  local lets, first_of, before = control.lets, control.first_of, before

  local function spot(seat, priority)
    return { lane = string.sub(seat, 9), priority = tonumber(priority), seq = struct.unpack('>I8', seat) }
  end

  -- Members of a round in the order of their tags, with them: all if the worker is choosy, else those that may be served.
  local function members(level, all)
    return redis.call('ZRANGE', K .. ':tags:' .. level, 0, tasks and all or warm and NEAR - 1 or 0, 'WITHSCORES')
  end

  -- The lanes of a line that the worker knows, as `lanes_of`; where they take turns, the one whose turn it is, or one that is near
  -- its turn and that the worker is warm for. `turn` = the tag of the one whose turn it is.
  local function lanes_in(line, into)
    local weights = control.fair_line({ line = line, queue = queue })
    if not weights then return lanes_of(line, into) end
    local found, best, turn, seen = members(line, -1), nil, nil, 0
    for i = 1, #found, 2 do
      local lane, start = lane_of(string.sub(found[i], 9)), tonumber(found[i + 1])
      if turn and (not warm or start >= turn + LEAD or seen == NEAR) then break end
      if knows(lane) then
        best, turn, seen = best or lane, turn or start, seen + 1
        if warm and is_warm(lane) then
          best = lane
          break
        end
      end
    end
    if not best then return end
    local first = first_of(best)
    push(into, { lane = best.name, priority = tonumber(first[2]), seq = struct.unpack('>I8', first[1]), turn = turn })
  end

  -- Where tenants take turns: the lane of the one whose turn it is, or as above, and the next of the same.
  local function turn_of_tenants()
    local found, best, turn, seen = members(queue, 999), nil, nil, 0
    for i = 1, #found, 2 do
      local line, start = string.sub(found[i], 9), tonumber(found[i + 1])
      if best and (not warm or start >= turn + LEAD or seen == NEAR) then break end
      if not best or warm_tenants[string.match(line, '^[^,]*')] then
        local lanes = {}
        lanes_in(line, lanes)
        table.sort(lanes, before)
        if lanes[1] then
          local liked = warm and is_warm(lane_of(lanes[1].lane))
          turn = turn or start
          if liked or not best then best = lanes end
          if liked then break end
        end
      end
      if best then seen = seen + 1 end
    end
    if not best then return nil end
    best[1].turn_of_tenant = turn
    return best[1], best[2]
  end

  -- The lane whose turn it is, and the one after it where they do not take turns.
  local function turn()
    local found = {}
    if tenant ~= '-' then
      local line = tenant .. ',' .. queue
      if not lets(queue, 's') or not redis.call('HGET', K .. ':parks', line) then lanes_in(line, found) end
    elseif lets(queue, 'q') then
      return turn_of_tenants()
    else
      for _, head in ipairs(redis.call('ZRANGE', K .. ':heads:' .. queue, 0, tasks and 999 or 1)) do
        lanes_in(string.sub(head, 9), found)
      end
    end
    table.sort(found, before)
    return found[1], found[2]
  end

  -- The first of a lane, a group in it or the lane itself, and what else of the lane comes next.
  local function first_in(lane)
    local plain = redis.call('ZRANGE', K .. ':ready:' .. lane.name, 0, 0, 'WITHSCORES')
    local groups = redis.call('ZRANGE', K .. ':heads:' .. lane.name, 0, 1, 'WITHSCORES')
    local own = plain[1] and spot(string.sub(plain[1], 1, 8) .. lane.name, plain[2])
    local first, second = groups[1] and spot(groups[1], groups[2]), groups[3] and spot(groups[3], groups[4])
    if not first or (own and before(own, first)) then return own, first end
    return first, own and (not second or before(own, second)) and own or second
  end

  -- Take what may be taken of a lane before its rival comes; groups that are held up are parked on the way.
  local function take_from(lane, rival, turns)
    local by_turns = lets(queue, 'q') or control.fair_line(lane)
    while tries > 0 and #ids < slots do
      local first, next_one = first_in(lane)
      if not first or (rival and before(rival, first)) then break end
      if rival and (not next_one or before(rival, next_one)) then next_one = rival end
      local route = lane_of(first.lane)
      local most, obstacle, at = slots - #ids, nil, nil
      if route.group then
        local free
        free, obstacle, at = control.admit(route)
        most = math.min(most, free)
      end
      if most > 0 then
        if by_turns then
          most = 1
          control.serve(lane, turns)
        end
        local popped = pop(first, next_one, most)
        start_all(route, popped)
        control.settle_group(route)
        if by_turns then break end
      else
        control.park_group(route, obstacle, at)
        tries = tries - 1
      end
    end
    control.settle_lane(lane)
  end

  control.wake_due(FEW)
  if control.queue_shut(queue) then return end
  while tries > 0 and #ids < slots do
    local first, rival = turn()
    if not first then return end
    local lane = lane_of(first.lane)
    if control.pass_shut(lane) then tries = tries - 1 else take_from(lane, rival, first) end
  end
end

local function claim_from(queue)
  if mode_of(queue) then claim_in_flow(queue) else claim_in_order(queue) end
end

-- One job of the member whose turn it is; whether there was one.
local function take_turn(part)
  if not part.members then
    local before = #ids
    claim_part(part, 1, claim_from)
    return #ids > before
  end
  while tries > 0 and #part.members > 0 do
    local one = table.remove(part.members, 1)
    if take_turn(one) then
      push(part.members, one)
      return true
    end
  end
  return false
end

if turns == '' then
  for i = first_queue, #ARGV do claim_from(ARGV[i]) end
else
  flow().wake_due(FEW)
  for _, part in ipairs(parts_of_claim()) do
    while tries > 0 and #ids < slots and take_turn(part) do end
  end
end
if tries == 0 and #ids < slots then
  -- What comes next may be free all the same. A script must end some time: others wait.
  if #ids == 0 then return 1 end
  for i = first_queue, #ARGV do publish('work/' .. ARGV[i]) end
end
local answered = finish(flush)
if made.control then made.control.end_rounds() end
return answered
