-- Queue scheduled jobs whose time has come.
-- ARGV[2]  most
-- Output   how many
local jobs, queues = due_jobs(':due', ARGV[2]), {}
for _, job in ipairs(jobs) do
  leave(job)
  job[STATE], job[UPDATED] = QUEUED, now
  save(job)
  enter(job)
  queues[job.lane.queue] = true
end
flush()
for queue in pairs(queues) do publish('work/' .. queue) end
return #jobs
