-- Move jobs to other groups.
-- ARGV[2..]  per job: id, the group before and the one after ('' = none)
-- Output     per job: 1 if it was in that group and has not ended, else 0

-- A running job takes its places in the buckets of its new group, and gives back those that it no longer belongs to.
local function move_places(id, before, after)
  local kept = {}
  for _, name in ipairs(flow().buckets_of(after)) do
    kept[name] = true
    redis.call('SADD', K .. ':places:' .. name, id)
    local allowance = string.match(name, '^([^=]*)=')
    if allowance then redis.call('SADD', K .. ':keys:' .. allowance, name) end
  end
  for _, name in ipairs(flow().buckets_of(before)) do
    if not kept[name] then flow().give_back(id, { buckets = { name } }) end
  end
end

local function regroup(id, before, after)
  local job = load(id)
  if not job or job[STATE] > RUNNING or (job.lane.group or '') ~= before then return 0 end
  local old, new = job.lane, lane_of(after == '' and job.lane.name or job.lane.name .. ';' .. after)
  if old == new then return 1 end
  local value = redis.call('GET', job.key)
  local zero = string.find(value, '\0', 69, true)
  redis.call('SET', job.key, string.sub(value, 1, 68) .. new.route .. string.sub(value, zero))
  if job[STATE] == QUEUED then
    push(in_(old, 'unready'), member(job[SEQ], id))
    push(in_(new, 'ready'), job[PRIORITY], member(job[SEQ], id))
  elseif job[STATE] == RUNNING then
    job.lane = new
    save_run(job)
    move_places(id, old, new)
  end
  flush()
  if job[STATE] == QUEUED then publish('work/' .. new.queue) end
  return 1
end

local out = {}
for i = 2, #ARGV, 3 do out[#out + 1] = regroup(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
return out
