-- Records beside the jobs, all in the first partition.
-- ARGV[2..]  'put', kind, name, data   -> 1
--            'drop', kind, name        -> 1
--            'swap', kind, name, '1' if there should be one, data, '1' if there is to be one, data  -> 1 if it was so, else 0
--            'all', kind               -> name, data, …
local verb, shelf = ARGV[2], K .. ':shelf:' .. ARGV[3]
if verb == 'put' then
  redis.call('HSET', shelf, ARGV[4], ARGV[5])
  return 1
elseif verb == 'drop' then
  redis.call('HDEL', shelf, ARGV[4])
  return 1
elseif verb == 'swap' then
  if redis.call('HGET', shelf, ARGV[4]) ~= (ARGV[5] == '1' and ARGV[6]) then return 0 end
  if ARGV[7] == '1' then redis.call('HSET', shelf, ARGV[4], ARGV[8]) else redis.call('HDEL', shelf, ARGV[4]) end
  return 1
end
return redis.call('HGETALL', shelf)
