-- End jobs well.
-- ARGV[2..]  per job: '>c16c8Hi8' (id, token, code, finished_at (0 = now)) .. result
--            result = '' (none), or content type, zero byte, data
-- Output     per job: 1 if it was held under that token, else 0
local ids = {}
for i = 2, #ARGV do ids[i - 1] = string.sub(ARGV[i], 1, 16) end
local lives = redis.call('HMGET', K .. ':runs', unpack(ids))

local out, ends = {}, {}
for i = 2, #ARGV do
  local id, live = ids[i - 1], lives[i - 1]
  local held_ = live and not ends[id] and string.sub(live, 1, 8) == string.sub(ARGV[i], 17, 24)
  if held_ then
    local code, finished, from = struct.unpack('>Hi8', ARGV[i], 25)
    local job = load(id, false, live)
    leave(job)
    local keep, run = job[REASON] == DELETED and 0 or job[KEEP], job.run
    job[STATE], job[REASON], job[UPDATED] = SUCCEEDED, 0, now
    run[CODE], run[FINISHED] = code, finished > 0 and finished or now
    if keep == 0 then
      vanish(job, RUNNING)
    else
      if #ARGV[i] >= from and not has(job, NONE) then
        mark(job, RESULT)
        redis.call('SET', K .. 'r' .. id, string.sub(ARGV[i], from))
      end
      enter(job, drop_at(keep))
      relist(job, RUNNING)
      save(job)
    end
    ends[id] = true
  end
  out[i - 1] = held_ and 1 or 0
end
flush()
if next(ends) and redis.call('EXISTS', K .. ':awaited') == 1 then
  for id in pairs(ends) do tell_end(id) end
end
return out
