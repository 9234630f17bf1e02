-- What a job has put out.
-- ARGV[2..]  id, after (number), most
-- Output     the pieces, with CHUNK_HEAD
local key, after = K .. 'o' .. ARGV[2], tonumber(ARGV[3])
local first = redis.call('LINDEX', key, '0')
if not first then return {} end
local number, _, _, _, stream = struct.unpack(CHUNK_HEAD, first)
if stream == NO_STREAM then return {} end
local from = math.max(0, after - number + 1)
return redis.call('LRANGE', key, from, from + ARGV[4] - 1)
