-- Jobs wait for others: how these stand, and where they are pending, note who waits.
-- ARGV[2..]  per edge: parent, tenant, child
-- Output     per edge: the parent's state; GONE = there is no such job of that tenant
local function bind(parent, tenant, child)
  local key = key_of(parent, tenant)
  local job = load(key)
  if not job then
    local score = redis.call('ZSCORE', K .. ':ripe', parent .. tenant)
    return score and tonumber(score) % 8 or GONE
  end
  if job[STATE] <= PENDING then
    redis.call('SADD', K .. 'c' .. key, child)
    if not has(job, FOLLOWED) then
      mark(job, FOLLOWED)
      if job[STATE] == RUNNING then save_run(job) else redis.call('SETRANGE', job.key, '3', string.char(job[FLAGS])) end
    end
  end
  return job[STATE]
end

local out = {}
for i = 2, #ARGV, 3 do out[#out + 1] = bind(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
return out
