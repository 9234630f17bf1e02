-- Lease the first jobs that a worker may take, from queues in which nothing bounds them: see claiming.lua.
-- Output  0 if some queue is bounded, 2 if the claim is sent again: then nothing was taken
if last then return 2 end
local letters = redis.call('HMGET', K .. ':flow', '*', unpack(ARGV, first_queue))
for i = 1, #letters do
  if letters[i] then return 0 end
end

-- How many jobs of a part there are to take, at most so many.
local function count_of(part, most)
  local number = 0
  if part.members then
    for _, one in ipairs(part.members) do
      if number >= most then return most end
      number = number + count_of(one, most - number)
    end
    return number
  end
  local every, lines = tasks, { part.tenant .. ',' .. part.queue }
  if part.tenant == '-' then
    lines = redis.call('ZRANGE', K .. ':heads:' .. part.queue, '0', '999')
    for i = 1, #lines do lines[i] = string.sub(lines[i], 9) end
  end
  tasks = part.tasks
  for _, line in ipairs(lines) do
    for _, seat in ipairs(redis.call('ZRANGE', K .. ':heads:' .. line, '0', '-1')) do
      local lane = string.sub(seat, 9)
      if number < most and knows(lane_of(lane)) then number = number + redis.call('ZCARD', K .. ':ready:' .. lane) end
    end
  end
  tasks = every
  return math.min(number, most)
end

-- Share so many slots: what one job for each member in turn, and again, comes to.
local function share(part, room)
  if not part.members then return claim_part(part, room, claim_in_order) end
  if #part.members == 1 then return share(part.members[1], room) end
  local some, counts, parts = {}, {}, {}
  for _, one in ipairs(part.members) do
    local count = #some < room and count_of(one, room) or 0
    if count > 0 then
      push(some, one)
      push(counts, count)
      push(parts, 0)
    end
  end
  local given = true
  while room > 0 and given do
    given = false
    for i = 1, #some do
      if room > 0 and parts[i] < counts[i] then
        parts[i], room, given = parts[i] + 1, room - 1, true
      end
    end
  end
  for i = 1, #some do
    if parts[i] > 0 then share(some[i], parts[i]) end
  end
end

if turns == '' then
  for i = first_queue, #ARGV do claim_in_order(ARGV[i]) end
else
  for _, part in ipairs(parts_of_claim()) do
    if #ids < slots then share(part, slots - #ids) end
  end
end
if #ids == 0 and slots > 0 and stays > 0 then
  leave_wish(stays, { nonce = nonce, lease = lease, tenant = tenant, worker = worker, node = node }, { unpack(ARGV, 15, 14 + known) },
    { unpack(ARGV, first_queue) })
end
return finish(function()
  for _, lane in pairs(lanes) do flush_counts(lane) end
  flush_indexes()
end)
