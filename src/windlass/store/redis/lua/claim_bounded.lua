-- Lease the first jobs that a worker may take where flow control bounds them: see claiming.lua and flow.lua.
-- Output  1 if it took nothing, but is to be asked again at once
local MOST_TRIES = 200

local tries = MOST_TRIES

local function claim_in_flow(queue)
  local control = flow()
  local lets, first_of, before = control.lets, control.first_of, before

  local function spot(seat, priority)
    return { lane = string.sub(seat, 9), priority = tonumber(priority), seq = struct.unpack('>I8', seat) }
  end

  -- The lanes of a line that the worker knows, as `lanes_of`; where they take turns, the one whose turn it is.
  local function lanes_in(line, into)
    local weights = control.fair_line({ line = line, queue = queue })
    if not weights then return lanes_of(line, into) end
    for _, seat in ipairs(redis.call('ZRANGE', K .. ':tags:' .. line, 0, tasks and -1 or 0)) do
      local lane = lane_of(string.sub(seat, 9))
      if knows(lane) then
        local first = first_of(lane)
        push(into, { lane = lane.name, priority = tonumber(first[2]), seq = struct.unpack('>I8', first[1]) })
        return
      end
    end
  end

  -- The lane whose turn it is, and the one after it where they do not take turns.
  local function turn()
    local found, by_turns = {}, lets(queue, 'q')
    if tenant ~= '-' then
      local line = tenant .. ',' .. queue
      if not lets(queue, 's') or not redis.call('HGET', K .. ':parks', line) then lanes_in(line, found) end
    else
      for _, head in ipairs(redis.call('ZRANGE', K .. (by_turns and ':tags:' or ':heads:') .. queue, 0, tasks and 999 or 1)) do
        lanes_in(string.sub(head, 9), found)
        if by_turns and found[1] then break end
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
  local function take_from(lane, rival)
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
          control.serve(lane)
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
    if control.pass_shut(lane) then tries = tries - 1 else take_from(lane, rival) end
  end
end

for i = 11 + known, #ARGV do
  if mode_of(ARGV[i]) then claim_in_flow(ARGV[i]) else claim_in_order(ARGV[i]) end
end
if tries == 0 and #ids < slots then
  -- What comes next may be free all the same. A script must end some time: others wait.
  if #ids == 0 then return 1 end
  for i = 11 + known, #ARGV do publish('work/' .. ARGV[i]) end
end
local answered = finish()
if made.control then made.control.end_rounds() end
return answered
