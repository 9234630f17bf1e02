-- What is queued, by lane and group.
-- ARGV[2..]  tenant ('-' = all), queue, most jobs of each
-- Output     per route: route, how many, { member of its jobs, priority, … }
local tenants = ARGV[2] == '-' and redis.call('SMEMBERS', K .. ':tenants') or { ARGV[2] }
local queue, most, out = ARGV[3], tonumber(ARGV[4]), {}

local function tell(route)
  local number = redis.call('ZCARD', K .. ':ready:' .. route)
  if number == 0 then return end
  push(out, route, number)
  push(out, most > 0 and redis.call('ZRANGE', K .. ':ready:' .. route, 0, most - 1, 'WITHSCORES') or {})
end

for _, tenant in ipairs(tenants) do
  local line = tenant .. ',' .. queue
  for _, field in ipairs(redis.call('HKEYS', K .. ':counts:' .. tenant)) do
    local own, task, state = string.match(field, '^([^,]*),([^,]*),(.*)$')
    if own == queue and tonumber(state) == QUEUED then tell(line .. ',' .. task) end
  end
  for _, route in ipairs(redis.call('ZRANGEBYLEX', K .. ':groups', '[' .. line .. ',', '(' .. line .. '-')) do tell(route) end
end
return out
