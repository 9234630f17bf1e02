-- Somebody waits for the end of jobs.
-- ARGV[2..]  id, …
redis.call('SADD', K .. ':awaited', unpack(ARGV, 2))
redis.call('EXPIRE', K .. ':awaited', 120)
return 1
