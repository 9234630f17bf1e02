-- The result of a job, unless its time is over; one that is kept for a single reading is gone afterwards, but for the job
-- that follows.
-- ARGV[2]  id
-- Output   content type, zero byte, data; or nothing
local id = ARGV[2]
local job = load(id)
if not job or not has(job, RESULT) then return false end
local once = has(job, ONCE)
if bit.band(job[FLAGS], TIMED) == TIMED then
  if tonumber(redis.call('ZSCORE', K .. ':gone', id)) <= now then return false end
  once = struct.unpack(HOLD, redis.call('GET', K .. 'h' .. id)) == 1
end
local result = redis.call('GET', K .. 'r' .. id)
if once then spend(job) end
return result
