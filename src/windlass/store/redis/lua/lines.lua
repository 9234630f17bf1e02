-- Names of lines from one on, in order.
-- ARGV[2..]  first line (inclusive), end (exclusive, '' = none), most
-- Output     their names
return redis.call('ZRANGEBYLEX', K .. ':lines', '[' .. ARGV[2], ARGV[3] == '' and '+' or '(' .. ARGV[3], 'LIMIT', 0, ARGV[4])
