-- Which tenants have a job of an id.
-- ARGV[2..]  most looks; id, …
-- Output     { tenants of an id }, … for as many of the ids as that allows, and for one at least
local tenants, out = redis.call('SMEMBERS', K .. ':tenants'), {}
for i = 3, #ARGV do
  if #out > 0 and (#out + 1) * #tenants > tonumber(ARGV[2]) then break end
  local found = {}
  for _, tenant in ipairs(tenants) do
    if redis.call('EXISTS', K .. 'j' .. key_of(ARGV[i], tenant)) == 1 then push(found, tenant) end
  end
  push(out, found)
end
return out
