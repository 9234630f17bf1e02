-- Claims that wait: left by claim.lua where there is nothing to take, granted by add_one.lua. Only where nothing bounds what may run.

local function words_of(names) return #names > 0 and ',' .. table.concat(names, ',') .. ',' or '' end

-- Keep a wish for so long. Those that nobody took back in time are forgotten on the way.
local function leave_wish(stays, wish, tasks, queues)
  for _, queue in ipairs(queues) do
    redis.call('ZREMRANGEBYSCORE', K .. ':wishes:' .. queue, '-inf', stamp(now))
    redis.call('ZADD', K .. ':wishes:' .. queue, stamp(now + stays), wish.nonce)
  end
  local packed = struct.pack(WISH, wish.lease, wish.tenant, wish.worker, wish.node, words_of(tasks), words_of(queues))
  redis.call('SET', K .. ':wish:' .. wish.nonce, packed, 'PX', stamp(math.ceil(stays / 1000)))
end
