-- Jobs whose clock has run out.
-- ARGV[2..]  'lease', 'wait' or 'owner', most
-- Output     now, { when each ran out }, then the jobs
local index = ({ lease = ':leases', wait = ':stale', owner = ':unattended' })[ARGV[2]]
local times = {}
local out = { stamp(now), times }
for _, job in ipairs(due_jobs(index, ARGV[3])) do
  times[#times + 1] = redis.call('ZSCORE', K .. index, job.id)
  answer(job, meta_of(job), out)
end
return out
