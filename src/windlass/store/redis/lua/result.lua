-- The result of a job; one that is kept for a single reading is gone afterwards.
-- ARGV[2]  id
-- Output   content type, zero byte, data; or nothing
local id = ARGV[2]
local job = load(id)
if not job or not has(job, RESULT) then return false end
local result = redis.call('GET', K .. 'r' .. id)
if has(job, ONCE) then
  unmark(job, RESULT)
  redis.call('SETRANGE', job.key, '3', string.char(job[FLAGS]))
  redis.call('DEL', K .. 'r' .. id)
end
return result
