-- Records beside the jobs, all in the first partition.
-- ARGV[2..]  'put', kind, name, data   -> 1
--            'drop', kind, name        -> 1
--            'all', kind               -> name, data, …
local verb, shelf = ARGV[2], K .. ':shelf:' .. ARGV[3]
if verb == 'put' then
  redis.call('HSET', shelf, ARGV[4], ARGV[5])
  return 1
elseif verb == 'drop' then
  redis.call('HDEL', shelf, ARGV[4])
  return 1
end
return redis.call('HGETALL', shelf)
