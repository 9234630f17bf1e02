-- Jobs whose clock has run out.
-- ARGV[2..]  'lease' or 'wait', most
-- Output     now, then the jobs
local out = { stamp() }
for _, job in ipairs(due_jobs(ARGV[2] == 'lease' and ':leases' or ':stale', ARGV[3])) do answer(job, meta_of(job), out) end
return out
