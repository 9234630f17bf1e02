-- When something that is held up in some queues is free by the clock alone.
-- ARGV[2..]  queue, …
-- Output     microseconds from now, or nothing
local queues, best = {}, nil
flow().wake_due(FEW)
for i = 2, #ARGV do
  queues[ARGV[i]] = true
  local at = flow().queue_shut(ARGV[i])
  if at and (not best or at < best) and redis.call('EXISTS', K .. ':heads:' .. ARGV[i]) == 1 then best = at end
end

local function is_for(obstacle)
  for _, seat in ipairs(redis.call('ZRANGE', K .. ':parked:' .. obstacle, 0, 99)) do
    if queues[string.match(seat, '^[^,]*,([^,]*)', 9)] then return true end
  end
end

local wakes = redis.call('ZRANGE', K .. ':wakes', 0, 99, 'WITHSCORES')
for i = 1, #wakes, 2 do
  local at = tonumber(wakes[i + 1])
  if best and at >= best then break end
  if is_for(wakes[i]) then
    best = at
    break
  end
end
return best and stamp(best - now) or false
