-- End jobs well.
-- ARGV[2..]  per job: '>c16c8Hi8' (id, token, code, finished_at (0 = now)) .. result
--            result = '' (none), or content type, zero byte, data
-- Output     per job: 1 if it was held under that token, else 0
local out, ended = {}, {}
for i = 2, #ARGV do
  local id, token, code, finished, from = struct.unpack('>c16c8Hi8', ARGV[i])
  local job = load(id)
  if job and job[STATE] == RUNNING and job.run[TOKEN] == token then
    leave(job)
    local keep, run = job[REASON] == DELETED and 0 or job[KEEP], job.run
    job[STATE], job[REASON], job[UPDATED] = SUCCEEDED, 0, now
    run[TOKEN], run[CODE], run[FINISHED] = NO_TOKEN, code, finished > 0 and finished or now
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
    push(ended, id)
    out[i - 1] = 1
  else
    out[i - 1] = 0
  end
end
flush()
if #ended > 0 and redis.call('EXISTS', K .. ':awaited') == 1 then
  for _, id in ipairs(ended) do tell_end(id) end
end
return out
