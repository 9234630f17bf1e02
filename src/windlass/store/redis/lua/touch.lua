-- Signs of life of running jobs.
-- ARGV[2..]  lease (us); per job: id, token, pid ('' = unchanged), progress ('' = unchanged)
-- Output     per job: 1 or 0 (held), reason
local until_ = stamp(now + tonumber(ARGV[2]))
local out = {}
for i = 3, #ARGV, 4 do
  local id, token, pid, progress = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local job = load(id)
  local mine = job and job[STATE] == RUNNING and job.run[TOKEN] == token
  if mine then
    push(in_(added, ':leases'), until_, id)
    if progress ~= '' then
      mark(job, PROGRESS)
      redis.call('HSET', K .. ':progress', id, progress)
    end
    if pid ~= '' then job.run[PID], job[UPDATED] = tonumber(pid), now end
    if pid ~= '' or progress ~= '' then save_run(job) end
  end
  push(out, mine and 1 or 0, mine and job[REASON] or 0)
end
flush()
return out
