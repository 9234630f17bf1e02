-- Start nothing of a bucket for a while.
-- ARGV[2..]  bucket, how long (us)
redis.call('ZADD', K .. ':holds', 'GT', stamp(now + ARGV[3]), ARGV[2])
return 1
