-- Let come back what was held up by something that has passed.
-- ARGV[2]  most
-- Output   how many came back; the edition of the rules
local most, number = tonumber(ARGV[2]), 0
local ajar = redis.call('SRANDMEMBER', K .. ':ajar', ARGV[2])
redis.call('ZREMRANGEBYSCORE', K .. ':holds', '-inf', stamp(now))
if redis.call('EXISTS', K .. ':wakes') == 1 then number = flow().wake_due(ARGV[2]) end
for _, obstacle in ipairs(ajar) do
  if number >= most then break end
  number = number + flow().wake(obstacle, most - number)
end
return { number, tonumber(redis.call('HGET', K .. ':flow', '@') or 0) }
