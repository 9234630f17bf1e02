-- The result of a job; one that is kept for a single reading is gone afterwards, but for the job that
-- follows.
-- ARGV[2]  id
-- Output   content type, zero byte, data; or nothing
local id = ARGV[2]
local job = load(id)
if not job or not has(job, RESULT) then return false end
local result = redis.call('GET', K .. 'r' .. id)
if has(job, ONCE) then
  unmark(job, RESULT)
  redis.call('SETRANGE', job.key, '3', string.char(job[FLAGS]))
  if has(job, FOLLOWED) and redis.call('ZSCORE', K .. ':ripe', id .. job.lane.tenant) then
    redis.call('RENAME', K .. 'r' .. id, K .. 'k' .. id)
  else
    redis.call('DEL', K .. 'r' .. id)
  end
end
return result
