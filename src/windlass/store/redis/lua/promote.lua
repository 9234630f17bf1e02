-- Queue scheduled jobs whose time has come.
-- ARGV[2]  most
-- Output   each as `swept` makes it
local jobs, queues, out = due_jobs(':due', ARGV[2]), {}, {}
for _, job in ipairs(jobs) do
  leave(job)
  job[STATE], job[UPDATED] = QUEUED, now
  save(job)
  enter(job)
  queues[job.lane.queue] = true
  push(out, swept(job))
end
flush()
for queue in pairs(queues) do publish('work/' .. queue) end
return out
