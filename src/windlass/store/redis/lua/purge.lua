-- Drop finished jobs that have been kept long enough, and results that have.
-- ARGV[2]  most
-- Output   each as `swept` makes it

-- When the record of a job goes whose result goes first; nil = never.
local function second_stage(job)
  if job[KEEP] < 0 then return nil end
  return job[UPDATED] + math.floor(job[KEEP] * 1000000 + 0.5)
end

local function outlives_its_result(job)
  return job[STATE] == SUCCEEDED and bit.band(job[FLAGS], TIMED) == TIMED and (second_stage(job) or now + 1) > now
end

local out = {}
for _, job in ipairs(due_jobs(':gone', ARGV[2])) do
  if outlives_its_result(job) then
    push(out, swept(job, RESULT_ONLY))
    if has(job, RESULT) then spend(job) end
    local last = second_stage(job)
    if last then push(in_(added, ':gone'), stamp(last), job.id) else push(in_(removed, ':gone'), job.id) end
  else
    push(out, swept(job))
    leave(job)
    vanish(job, job[STATE])
  end
end
flush()
return out
