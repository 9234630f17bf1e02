-- Drop finished jobs that have been kept long enough.
-- ARGV[2]  most
-- Output   each as `swept` makes it
local out = {}
for _, job in ipairs(due_jobs(':gone', ARGV[2])) do
  push(out, swept(job))
  leave(job)
  vanish(job, job[STATE])
end
flush()
return out
