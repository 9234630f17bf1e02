-- How many jobs of its own lane and group are ahead of a queued one.
-- ARGV[2]  id
-- Output   the number, or nothing if it is not queued
local job = load(ARGV[2], false)
return job and job[STATE] == QUEUED and redis.call('ZRANK', K .. ':ready:' .. job.lane.route, member(job[SEQ], job.id)) or false
