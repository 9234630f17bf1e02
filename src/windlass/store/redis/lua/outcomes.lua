-- How runs ended.
-- ARGV[2]  tenant ('-' = all)
-- Output   tenant, { queue,task,outcome, number, … }, …
local out = {}
for _, tenant in ipairs(ARGV[2] == '-' and redis.call('HKEYS', K .. ':outcomes') or { ARGV[2] }) do
  if tenant ~= '' then
    out[#out + 1] = tenant
    out[#out + 1] = redis.call('HGETALL', K .. ':outcomes:' .. tenant)
  end
end
return out
