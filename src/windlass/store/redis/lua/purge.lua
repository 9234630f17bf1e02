-- Drop finished jobs that have been kept long enough.
-- ARGV[2]  most
-- Output   how many
local jobs = due_jobs(':gone', ARGV[2])
for _, job in ipairs(jobs) do
  leave(job)
  vanish(job, job[STATE])
end
flush()
return #jobs
