-- How the buckets of an allowance stand.
-- ARGV[2..]  allowance, most buckets
-- Output     per bucket: its name, places taken, jobs passed by, when its clock lets the next one start ('' = now)
local MOST_ROUTES = 10000
local allowance, most = ARGV[2], tonumber(ARGV[3])
local names, waiting = { [allowance] = true }, {}
for _, name in ipairs(redis.call('SMEMBERS', K .. ':keys:' .. allowance)) do names[name] = true end
for _, text in ipairs(redis.call('ZRANGE', K .. ':groups', 0, MOST_ROUTES - 1)) do
  if string.find(text, '|' .. allowance, 1, true) then
    local route = lane_of(text)
    local number = flow().is_held_up(route) and redis.call('ZCARD', K .. ':ready:' .. text) or 0
    for _, name in ipairs(flow().buckets_of(route)) do
      waiting[name] = (waiting[name] or 0) + number
      if string.match(name, '^[^=]*') == allowance then names[name] = true end
    end
  end
end

local sorted, out = {}, {}
for name in pairs(names) do push(sorted, name) end
table.sort(sorted)
for _, name in ipairs(sorted) do
  local running, waits, at = redis.call('SCARD', K .. ':places:' .. name), waiting[name] or 0, flow().bucket_of(name).at
  if (running > 0 or waits > 0) and #out < 4 * most then
    push(out, name, running)
    push(out, waits, at and stamp(at) or '')
  end
end
return out
