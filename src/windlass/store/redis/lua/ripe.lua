-- Take jobs off the list of ripe ones, and tell of some that are on it.
-- ARGV[2..]  most, most children of each; per job to take off: id, tenant, score, number of children dealt with, child, …
-- Output     with most 0: 1 per job taken off; else per job: id .. tenant, score, what is to follow it ('' = nothing), its result ('' = none), { children }
local function take_off(id, member, score)
  if redis.call('EXISTS', K .. 'c' .. id) == 1 or redis.call('ZSCORE', K .. ':ripe', member) ~= score then return end
  redis.call('ZREM', K .. ':ripe', member)
  redis.call('DEL', K .. 'k' .. id)
  local job = load(id)
  if not job or not has(job, FOLLOWED) then redis.call('DEL', K .. 't' .. id) end
end

local i, out = 4, {}
while i <= #ARGV do
  local id, children = key_of(ARGV[i], ARGV[i + 1]), tonumber(ARGV[i + 3])
  if children > 0 then redis.call('SREM', K .. 'c' .. id, unpack(ARGV, i + 4, i + 3 + children)) end
  take_off(id, ARGV[i] .. ARGV[i + 1], ARGV[i + 2])
  i = i + 4 + children
  out[#out + 1] = 1
end
if ARGV[2] == '0' then return out end

local first = redis.call('ZRANGE', K .. ':ripe', 0, ARGV[2] - 1, 'WITHSCORES')
for i = 1, #first, 2 do
  local id = key_of(id_of(first[i]), string.sub(first[i], ID_SIZE + 1))
  local follows, result = redis.call('GET', K .. 't' .. id) or '', ''
  if follows ~= '' then result = redis.call('GET', K .. 'r' .. id) or redis.call('GET', K .. 'k' .. id) or '' end
  push(out, first[i], first[i + 1])
  push(out, follows, result)
  push(out, redis.call('SRANDMEMBER', K .. 'c' .. id, ARGV[3]))
end
return out
