-- Hand out messages to whoever holds their jobs; those up to the last that it has are forgotten.
-- ARGV[2..]  per job: id, token, number of the last message that its holder has
-- Output     per job: the messages after that one, with MESSAGE_HEAD; none any more when MOST_COLLECTED bytes were handed out
local room = MOST_COLLECTED

local function messages(id, token, after)
  local live = redis.call('HGET', K .. ':runs', id)
  if room <= 0 or not live or string.sub(live, 1, 8) ~= token then return {} end
  local key = K .. 'i' .. id
  local first = redis.call('LINDEX', key, '0')
  if not first then return {} end
  local taken = struct.unpack(MESSAGE_HEAD, first)
  local spent = math.min(after - taken, redis.call('LLEN', key) - 1)
  if spent > 0 then
    redis.call('LTRIM', key, spent, -1)
    redis.call('LSET', key, 0, string.sub(redis.call('LINDEX', key, '0'), 1, 16))
  end
  local found = redis.call('LRANGE', key, 1, -1)
  for _, message in ipairs(found) do room = room - #message end
  return found
end

local out = {}
for i = 2, #ARGV, 3 do out[#out + 1] = messages(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])) end
return out
