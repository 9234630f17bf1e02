-- Claims that wait: left by claim.lua where there is nothing to take, granted by add_one.lua. Only where nothing bounds what may run.

local MOST_LOOKED_AT = 16
local MOST_BYTES = 65536 -- of a job that a notice carries: a server cuts off whoever does not read long ones in time

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

local function is_idle(tenant, queues)
  local heads, whose = {}, tenant == '-' and '' or tenant .. ','
  for queue in string.gmatch(queues, '[^,]+') do heads[#heads + 1] = K .. ':heads:' .. whose .. queue end
  return redis.call('EXISTS', unpack(heads)) == 0
end

-- Whether a wish is for such a job, and nothing else waits that might come before it.
local function suits(tenant, tasks, queues, job)
  if tenant ~= '-' and tenant ~= job.tenant then return false end
  if tasks ~= '' and not string.find(tasks, ',' .. job.task .. ',', 1, true)
    and not string.find(tasks, ',' .. job.tenant .. '/' .. job.task .. ',', 1, true) then return false end
  return is_idle(tenant, queues)
end

-- The wish that has waited longest of those that a new job suits, and whose owner hears that it is granted: else the job would wait
-- for a lease to run out.
local function grant(job, bytes)
  if #bytes > MOST_BYTES then return end
  local wishes = K .. ':wishes:' .. job.queue
  local found = redis.call('ZRANGE', wishes, 0, MOST_LOOKED_AT - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local nonce = found[i]
    local wish = tonumber(found[i + 1]) > now and redis.call('GET', K .. ':wish:' .. nonce)
    local heard = false
    if wish then
      local lease, tenant, worker, node, tasks, queues = struct.unpack(WISH, wish)
      if suits(tenant, tasks, queues, job) then
        heard = publish('wish/' .. worker, struct.pack('>c8I8', nonce, now) .. job.id .. bytes) > 0
        wish = heard and { lease = lease, worker = worker, node = node, nonce = nonce, first = string.match(queues, '[^,]+') }
      end
    end
    if heard or not wish then redis.call('ZREM', wishes, nonce) end
    if heard then
      redis.call('DEL', K .. ':wish:' .. nonce)
      return wish
    end
  end
end
