-- How many jobs there are.
-- ARGV[2]  tenant ('-' = all)
-- Output   tenant, { queue,task,state, number, … }, …
local tenants = ARGV[2] == '-' and redis.call('SMEMBERS', K .. ':tenants') or { ARGV[2] }
local out = {}
for _, tenant in ipairs(tenants) do
  out[#out + 1] = tenant
  out[#out + 1] = redis.call('HGETALL', K .. ':counts:' .. tenant)
end
return out
