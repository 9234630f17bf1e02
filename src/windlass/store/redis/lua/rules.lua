-- The rules in force.
-- Output  as they came, or nothing
return redis.call('GET', K .. ':rules')
