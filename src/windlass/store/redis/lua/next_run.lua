-- When the first of the scheduled jobs is due.
-- Output  microseconds from now, 0 if it is due; or nothing
local at = redis.call('ZRANGE', K .. ':due', 0, 0, 'WITHSCORES')[2]
return at and stamp(math.max(at - now, 0)) or false
