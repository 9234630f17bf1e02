-- Flow control: which queued jobs a claim may take, beyond whose turn it is. Knows the keys and how they are maintained;
-- the rules come from outside (rules.lua).
--
--   K:rules                 string  the flow settings in force, opaque here
--   K:flow                  hash    '#' -> the epoch of their limit keys, '@' -> their version; queue, or '*' = every queue ->
--                                   letters: q = its tenants take turns, l = the tasks of its tenant queues do, s = lanes
--                                   may be paused, b = it has had jobs with limit keys
--   K:limit_rules           hash    limit -> running, count, per (us), burst, closed until (us); '-' = none
--   K:tiers                 hash    tenant queue -> name, seconds, cap, … of its tiers
--   K:fair                  hash    queue, tenant queue or '*,queue' -> '1'; that, a space and a tenant or task -> its weight
--   K:pauses                hash    pattern of a pause -> its end (us)
--   K:holds                 zset    buckets on hold by the end of it
--   K:limited_lanes         zset    lanes with limit keys that have queued jobs, by name
--   K:heads:<plain lane>    zset    the lanes with limit keys among its lanes, each with the score and sequence of its first
--                                   job: member = sequence .. lane
--   K:places:<bucket>       set     ids of its running jobs
--   K:keys:<limit>          set     its buckets with a key that have running or blocked jobs
--   K:starts:<bucket>       list    when jobs of it started, as far as that is in the window
--   K:tokens:<bucket>       string  tokens left; of the clock that refills it: its start, and how many it has brought
--   K:assigned              hash    id -> seconds and name of the tier at which a job runs
--   K:levels:<tenant queue> zset    those jobs by the number of their tier (0 = the tier no longer exists)
--   K:blocked_by:<blocker>  zset    the names that it blocks, as in the heads
--   K:blocker_of            hash    name -> its blocker; then it is in no heads
--   K:blocked_counts        hash    queue or tenant queue -> number of blocked names in it
--   K:blockers              set     blockers that block something
--   K:wakes                 zset    blockers by the time at which they have room
--   K:dirty                 set     dirty blockers: they have let some pass and may let more
--   K:tags:<level>          zset    where members take turns, those that have queued jobs: score = start tag, member as in
--                                   the heads
--   K:turns:<level>         zset    members by their finish tag, if it is beyond the virtual time; dropped when nothing waits
--   K:virtual_times         hash    level -> its virtual time
--
-- A bucket counts the jobs of one limit, or of one limit and one key ('limit=key'). A blocker is a bucket, a level of tiers
-- ('tenant,queue^tier') or a pause ('!pattern'). What it blocks are names: of a lane, a plain lane or a tenant queue. A name
-- that meets a full blocker is blocked behind it, and costs nothing until the blocker has room. Turns are taken at a level:
-- a queue, whose members are tenant queues, or a tenant queue, whose members are plain lanes.

do

local FEW, MOST, HUGE = 16, 1000, 1000000000

-- The state of one call.
local buckets, tiers, fair, freed, opened, notified, dry = {}, {}, {}, {}, {}, {}, {}
local spare_ms

function flow.begin()
  buckets, tiers, fair, freed, opened = cleared(buckets), cleared(tiers), cleared(fair), cleared(freed), cleared(opened)
  notified, dry = cleared(notified), cleared(dry)
  -- The server's clock may differ from the one that a test passes: nothing may expire earlier than it must.
  spare_ms = is_server_time and 1000 or 3600000
end

-- Whether a letter of K:flow is set for a queue.
function flow.has_mode(queue, letter) return string.find(mode_of(queue) or '', letter, 1, true) ~= nil end
local function first_in(key) return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES') end
local function blocked_key(blocker) return K .. ':blocked_by:' .. blocker end

-- Turns

-- The name under which K:fair has the weights of a tenant queue's tasks; false = they take no turns.
function flow.fair_name(lane)
  if fair[lane.tenant_queue] == nil then
    local any = '*,' .. lane.queue
    local found = flow.has_mode(lane.queue, 'l') and redis.call('HMGET', K .. ':fair', lane.tenant_queue, any) or {}
    fair[lane.tenant_queue] = found[1] and lane.tenant_queue or found[2] and any or false
  end
  return fair[lane.tenant_queue]
end

local function fair_queue(lane) return flow.has_mode(lane.queue, 'q') end

local function exact(number) return string.format('%.17g', number) end

-- The first job of a member has changed; `before` nil = it had none, `after` nil = it has none.
local function retag(level, name, before, after)
  local tags, tag = K .. ':tags:' .. level, false
  if before then
    tag = redis.call('ZSCORE', tags, before)
    redis.call('ZREM', tags, before)
  end
  if not after then
    dry[level] = true
    return
  end
  if not tag then
    local clock, finish = redis.call('HGET', K .. ':virtual_times', level) or 0, redis.call('ZSCORE', K .. ':turns:' .. level, name) or 0
    tag = exact(math.max(tonumber(clock), tonumber(finish)))
  end
  redis.call('ZADD', tags, tag, after)
end

-- A member is served one job. `turn` = the tag of the member whose turn it is, if known: a preferred member moves no clock.
local function charge(level, name, weights, own, turn)
  local top = redis.call('HGET', K .. ':tops', name)
  local seat = string.sub(top, string.find(top, ' ', 1, true) + 1)
  local start = tonumber(redis.call('ZSCORE', K .. ':tags:' .. level, seat))
  local weight = tonumber(redis.call('HGET', K .. ':fair', weights .. ' ' .. own) or 1)
  local clock = math.max(tonumber(redis.call('HGET', K .. ':virtual_times', level) or 0), turn or start)
  local finish = exact(start + 1 / weight)
  redis.call('HSET', K .. ':virtual_times', level, exact(clock))
  redis.call('ZADD', K .. ':turns:' .. level, finish, name)
  redis.call('ZREMRANGEBYSCORE', K .. ':turns:' .. level, '-inf', exact(clock))
  redis.call('ZADD', K .. ':tags:' .. level, finish, seat)
end

function flow.serve(lane, turns)
  if flow.fair_name(lane) then charge(lane.tenant_queue, lane.plain, flow.fair_name(lane), lane.task, turns.turn) end
  if fair_queue(lane) then charge(lane.queue, lane.tenant_queue, lane.queue, lane.tenant, turns.turn_of_tenant) end
end

-- At the end of a call: forget the turns of a level where nothing waits, not even behind a blocker.
function flow.end_rounds()
  for level in pairs(dry) do
    if redis.call('EXISTS', K .. ':tags:' .. level) == 0 and not redis.call('HGET', K .. ':blocked_counts', level) then
      redis.call('UNLINK', K .. ':turns:' .. level)
      redis.call('HDEL', K .. ':virtual_times', level)
    end
  end
  dry = {}
end

-- Places in the heads

-- Count names of a tenant queue that are blocked.
local function count_blocked(tenant_queue, by)
  for _, level in ipairs({ tenant_queue, string.match(tenant_queue, ',(.*)$') }) do
    if redis.call('HINCRBY', K .. ':blocked_counts', level, by) == 0 then
      redis.call('HDEL', K .. ':blocked_counts', level)
      dry[level] = true
    end
  end
end

local function tenant_queue_of(name) return string.match(name, '^[^,]*,[^,]*') end

-- A blocker has nothing behind it any more.
local function forget_blocker(blocker)
  redis.call('SREM', K .. ':blockers', blocker)
  redis.call('SREM', K .. ':dirty', blocker)
  redis.call('ZREM', K .. ':wakes', blocker)
  local limit = string.match(blocker, '^([^=^!]*)=')
  if limit and redis.call('EXISTS', K .. ':places:' .. blocker) == 0 then
    redis.call('SREM', K .. ':keys:' .. limit, blocker)
  end
end

-- Like `lift`, whether the name is in the heads or blocked. Returns: whether the heads changed, its member there before and after.
local function seat(name, heads, first, may_be_blocked)
  local blocker = may_be_blocked and redis.call('HGET', K .. ':blocker_of', name)
  local old = redis.call('HGET', K .. ':tops', name)
  local after = first[1] and string.sub(first[1], 1, 8) .. name
  local top = after and first[2] .. ' ' .. after
  if old == (top or false) then return false end
  local where, before = blocker and blocked_key(blocker) or heads, old and string.sub(old, string.find(old, ' ', 1, true) + 1)
  if before then redis.call('ZREM', where, before) end
  if after then
    redis.call('ZADD', where, first[2], after)
    redis.call('HSET', K .. ':tops', name, top)
  else
    redis.call('HDEL', K .. ':tops', name)
    if blocker then
      redis.call('HDEL', K .. ':blocker_of', name)
      count_blocked(tenant_queue_of(name), -1)
      if redis.call('EXISTS', where) == 0 then forget_blocker(blocker) end
    end
  end
  return not blocker, before, after
end

-- The first job of a plain lane, with limit keys or without.
function flow.first_of(lane)
  local free, limited = first_in(K .. ':ready:' .. lane.plain), first_in(K .. ':heads:' .. lane.plain)
  if not limited[1] then return free end
  if not free[1] then return limited end
  local a, b = tonumber(free[2]), tonumber(limited[2])
  return (a < b or (a == b and string.sub(free[1], 1, 8) < string.sub(limited[1], 1, 8))) and free or limited
end

local function settle_tenant_queue(lane)
  local first = first_in(K .. ':heads:' .. lane.tenant_queue)
  local changed, before, after = seat(lane.tenant_queue, K .. ':heads:' .. lane.queue, first, flow.has_mode(lane.queue, 's'))
  if changed and fair_queue(lane) then retag(lane.queue, lane.tenant_queue, before, after) end
end

function flow.settle_plain(lane)
  local changed, before, after = seat(lane.plain, K .. ':heads:' .. lane.tenant_queue, flow.first_of(lane), flow.has_mode(lane.queue, 's'))
  if not changed then return end
  if flow.fair_name(lane) then retag(lane.tenant_queue, lane.plain, before, after) end
  settle_tenant_queue(lane)
end

-- Put the first job of a lane with limit keys into the heads of its plain lane; whether that changed.
function flow.settle_lane(lane)
  if not lane.limit_keys then return true end
  local changed, before, after = seat(lane.name, K .. ':heads:' .. lane.plain, first_in(K .. ':ready:' .. lane.name), true)
  if not before and after then redis.call('ZADD', K .. ':limited_lanes', 0, lane.name) end
  if before and not after then redis.call('ZREM', K .. ':limited_lanes', lane.name) end
  return changed
end

-- The queued jobs of a lane have changed.
function flow.queued_changed(lane)
  if lane.limit_keys and not flow.has_mode(lane.queue, 'b') then
    redis.call('HSET', K .. ':flow', lane.queue, (redis.call('HGET', K .. ':flow', lane.queue) or '') .. 'b')
    modes[lane.queue] = (mode_of(lane.queue) or '') .. 'b'
  end
  if flow.settle_lane(lane) then flow.settle_plain(lane) end
end

-- Take a name out of the heads until its blocker has room, or the time `at` has come. Returns: its member there.
local function block(name, heads, blocker, at)
  local top = redis.call('HGET', K .. ':tops', name)
  local space = string.find(top, ' ', 1, true)
  local own = string.sub(top, space + 1)
  redis.call('ZREM', heads, own)
  redis.call('ZADD', blocked_key(blocker), string.sub(top, 1, space - 1), own)
  redis.call('HSET', K .. ':blocker_of', name, blocker)
  count_blocked(tenant_queue_of(name), 1)
  redis.call('SADD', K .. ':blockers', blocker)
  if at then redis.call('ZADD', K .. ':wakes', stamp(at), blocker) end
  local limit = string.match(blocker, '^([^=^!]*)=')
  if limit then redis.call('SADD', K .. ':keys:' .. limit, blocker) end
  return own
end

function flow.block_lane(lane, blocker, at) block(lane.name, K .. ':heads:' .. lane.plain, blocker, at) end

-- The pause of a lane, its end, and whether the whole tenant queue is paused. Pauses of whole queues are not looked for.
local function paused_by(lane)
  if not flow.has_mode(lane.queue, 's') then return nil end
  local t, q, k = lane.tenant, lane.queue, lane.task
  local patterns = { t .. ',' .. q .. ',*', t .. ',*,*', lane.plain, '*,' .. q .. ',' .. k, t .. ',*,' .. k, '*,*,' .. k }
  local times, best, at = redis.call('HMGET', K .. ':pauses', unpack(patterns)), nil, now
  for i, time in ipairs(times) do
    if time and tonumber(time) > at then best, at = i, tonumber(time) end
  end
  return best and '!' .. patterns[best], at, best and best <= 2
end

-- When the pause of a whole queue ends; nil = it is not paused.
function flow.queue_paused_until(queue)
  if not flow.has_mode(queue, 's') then return nil end
  local times = redis.call('HMGET', K .. ':pauses', '*,' .. queue .. ',*', '*,*,*')
  local at = math.max(tonumber(times[1] or 0), tonumber(times[2] or 0))
  return at > now and at or nil
end

-- Block a plain lane that is paused, or its whole tenant queue; whether it was.
function flow.block_if_paused(lane)
  local blocker, at, whole = paused_by(lane)
  if not blocker then return false end
  if whole then
    local own = block(lane.tenant_queue, K .. ':heads:' .. lane.queue, blocker, at)
    if fair_queue(lane) then retag(lane.queue, lane.tenant_queue, own, nil) end
  else
    local own = block(lane.plain, K .. ':heads:' .. lane.tenant_queue, blocker, at)
    if flow.fair_name(lane) then retag(lane.tenant_queue, lane.plain, own, nil) end
    settle_tenant_queue(lane)
  end
  return true
end

-- Buckets

-- Starts that the sliding window of a bucket has room for; if none, when it has room again.
local function window(bucket)
  local key, since = K .. ':starts:' .. bucket.name, now - bucket.per
  local last = redis.call('LINDEX', key, '-1')
  if last and tonumber(last) <= since then redis.call('DEL', key) end
  while true do
    local oldest, old = redis.call('LRANGE', key, '0', '99'), 0
    while oldest[old + 1] and tonumber(oldest[old + 1]) <= since do old = old + 1 end
    if old > 0 then redis.call('LPOP', key, old) end
    if old < 100 then break end
  end
  local free = bucket.count - redis.call('LLEN', key)
  if free > 0 then return free, nil end
  local leaves = redis.call('LINDEX', key, math.abs(free))
  return 0, leaves and tonumber(leaves) + bucket.per
end

-- The same for a bucket that refills.
local function tokens(bucket)
  local left, from, brought = string.match(redis.call('GET', K .. ':tokens:' .. bucket.name) or '', '^(%S+) (%S+) (%S+)$')
  left, from, brought = tonumber(left or bucket.burst), tonumber(from or now), tonumber(brought or 0)
  local all = math.floor((now - from) * bucket.count / bucket.per)
  left = left + all - brought
  if left >= bucket.burst then left, from, all = bucket.burst, now, 0 end
  bucket.from, bucket.brought = from, all
  return left, left == 0 and from + math.ceil((all + 1) * bucket.per / bucket.count) or nil
end

-- A bucket: its free places, the starts it allows now, and when its clock allows the next one (nil = now).
function flow.bucket_of(name)
  local bucket = buckets[name]
  if bucket then return bucket end
  bucket = { name = name, places = HUGE, starts = HUGE, ids = {}, limit = string.match(name, '^[^=]*') }
  buckets[name] = bucket
  local rule = redis.call('HGET', K .. ':limit_rules', bucket.limit)
  if not rule then return bucket end
  local running, count, per, burst, closed = string.match(rule, '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
  bucket.count, bucket.per, bucket.burst = tonumber(count), tonumber(per), tonumber(burst)
  if running ~= '-' then bucket.places = tonumber(running) - redis.call('SCARD', K .. ':places:' .. name) end
  if bucket.count then bucket.starts, bucket.at = (bucket.burst and tokens or window)(bucket) end
  local hold = math.max(tonumber(closed) or 0, tonumber(redis.call('ZSCORE', K .. ':holds', name) or 0))
  if hold > now then bucket.starts, bucket.at = 0, math.max(hold, bucket.at or 0) end
  return bucket
end

-- Tiers

local function tiers_of(tenant_queue)
  local found = tiers[tenant_queue]
  if found == nil then
    local text = redis.call('HGET', K .. ':tiers', tenant_queue)
    found = text and {}
    for name, seconds, cap in string.gmatch(text or '', '(%S+) (%S+) (%S+)') do
      local number = #found + 1
      local taken = number > 1 and redis.call('ZCOUNT', K .. ':levels:' .. tenant_queue, number, '+inf') or -HUGE
      found[number] = { name = name, seconds = seconds, free = tonumber(cap) - taken, number = number }
    end
    tiers[tenant_queue] = found
  end
  return found
end

function flow.tier_named(tenant_queue, name)
  for _, tier in ipairs(tiers_of(tenant_queue) or {}) do
    if tier.name == name then return tier end
  end
end

-- The tier at which a job of a lane would start; or nil and the level that has no room. Nil alone = it has no tier.
local function tier_for(lane)
  local letter = string.sub(lane.limit_keys, 1, 1)
  if letter ~= '=' and letter ~= '~' then return nil end
  local all, best = tiers_of(lane.tenant_queue), nil
  local wanted = letter == '=' and flow.tier_named(lane.tenant_queue, string.match(lane.limit_keys, '^=([^|]*)'))
  for _, tier in ipairs(all or {}) do
    if tier.free <= 0 then return not wanted and best, wanted and lane.tenant_queue .. '^' .. tier.name end
    best = tier
    if tier == wanted then break end
  end
  return best
end

-- Whether a tier has no room for one more.
function flow.is_full(tenant_queue, name)
  local tier = flow.tier_named(tenant_queue, name)
  return tier ~= nil and tier.number > 1 and tier.free <= 0
end

-- Free slots of workers: their number, then each with its slots, are `args` from `at` on. Returns: also where that ends.
function flow.free_slots(args, at)
  local free, behind = 0, at + 1 + 2 * tonumber(args[at])
  for i = at + 1, behind - 1, 2 do
    free = free + math.max(0, tonumber(args[i + 1]) - tonumber(redis.call('HGET', K .. ':held', args[i]) or 0))
  end
  return free, behind
end

-- Queued yielding jobs of a tenant queue: each was promised a slot.
function flow.promised(tenant_queue)
  local number, first = 0, tenant_queue .. ','
  for _, lane in ipairs(redis.call('ZRANGE', K .. ':limited_lanes', '[' .. first, '(' .. first .. '\255', 'BYLEX')) do
    if string.find(lane, ';!', 1, true) then number = number + redis.call('ZCARD', K .. ':ready:' .. lane) end
  end
  return number
end

local function note_tier(id, tenant_queue, tier)
  redis.call('HSET', K .. ':assigned', id, tier.seconds .. ' ' .. tier.name)
  redis.call('ZADD', K .. ':levels:' .. tenant_queue, tier.number, id)
end

-- Starts

function flow.buckets_of(lane)
  if not lane.buckets then
    lane.buckets = {}
    for name in string.gmatch(lane.limit_keys or '', '|([^|]+)') do push(lane.buckets, name) end
  end
  return lane.buckets
end

-- How many jobs of a lane may start now; if none, the blocker, and the time at which it has room if a clock decides that.
-- Of several blockers: a full one rather than a clock, the latest clock rather than an earlier one.
function flow.admit(lane)
  local free, blocker, at = HUGE, nil, nil
  for _, name in ipairs(flow.buckets_of(lane)) do
    local bucket = flow.bucket_of(name)
    if bucket.places <= 0 then return 0, name, nil end
    if bucket.starts <= 0 and (not at or (bucket.at or HUGE * HUGE) > at) then blocker, at = name, bucket.at or HUGE * HUGE end
    free = math.min(free, bucket.places, bucket.starts)
  end
  local tier, level = tier_for(lane)
  if level then return 0, level, nil end
  if blocker then return 0, blocker, at < HUGE * HUGE and at or nil end
  return tier and math.min(free, 1) or free
end

function flow.is_blocked(lane) return flow.admit(lane) <= 0 or flow.queue_paused_until(lane.queue) ~= nil or paused_by(lane) ~= nil end

-- A job starts. Returns: the seconds and the name of its tier, or ''.
function flow.start(lane, id)
  for _, name in ipairs(flow.buckets_of(lane)) do
    local bucket = flow.bucket_of(name)
    bucket.places, bucket.starts = bucket.places - 1, bucket.starts - 1
    push(bucket.ids, id)
  end
  local tier = tier_for(lane)
  if not tier then return '' end
  note_tier(id, lane.tenant_queue, tier)
  for number = 2, tier.number do tiers[lane.tenant_queue][number].free = tiers[lane.tenant_queue][number].free - 1 end
  return tier.seconds .. ' ' .. tier.name
end

local function write_starts(bucket)
  local number = #bucket.ids
  send('SADD', K .. ':places:' .. bucket.name, bucket.ids)
  if bucket.name ~= bucket.limit then redis.call('SADD', K .. ':keys:' .. bucket.limit, bucket.name) end
  if not bucket.count then return end
  if bucket.burst then
    local lasts = spare_ms + math.ceil(bucket.burst * bucket.per / bucket.count / 1000)
    local state = string.format('%d %.0f %.0f', bucket.starts, bucket.from, bucket.brought)
    redis.call('SET', K .. ':tokens:' .. bucket.name, state, 'PX', stamp(lasts))
  else
    local times, time = {}, stamp(now)
    for i = 1, number do times[i] = time end
    send('RPUSH', K .. ':starts:' .. bucket.name, times)
    redis.call('PEXPIRE', K .. ':starts:' .. bucket.name, stamp(spare_ms + math.ceil(bucket.per / 1000)))
  end
  if bucket.starts > 0 or redis.call('EXISTS', blocked_key(bucket.name)) == 0 then return end
  local _, at = (bucket.burst and tokens or window)(bucket)
  if at then redis.call('ZADD', K .. ':wakes', stamp(at), bucket.name) end
end

-- A running job goes on at a shorter tier.
function flow.shrink(id, lane, assigned)
  local seconds, name = string.match(assigned, '^(%S+) (.*)$')
  local tier = flow.tier_named(lane.tenant_queue, name)
  note_tier(id, lane.tenant_queue, { name = name, seconds = seconds, number = tier and tier.number or 0 })
  opened[lane.tenant_queue] = true
end

-- A run has ended: `flush` frees its places.
function flow.give_back(id, lane, assigned)
  for _, name in ipairs(flow.buckets_of(lane)) do push(in_(freed, name), id) end
  if assigned or string.find(lane.limit_keys or '', '^[=~]') then
    redis.call('HDEL', K .. ':assigned', id)
    redis.call('ZREM', K .. ':levels:' .. lane.tenant_queue, id)
    opened[lane.tenant_queue] = true
  end
end

-- Unblocking

-- How many a blocker has room for; if none and a clock decides, when it has.
local function room_behind(blocker)
  if string.sub(blocker, 1, 1) == '!' then
    local at = tonumber(redis.call('HGET', K .. ':pauses', string.sub(blocker, 2)) or 0)
    return at > now and 0 or HUGE, at
  end
  local tenant_queue, name = string.match(blocker, '^(.*)%^(.*)$')
  if tenant_queue then
    local tier = flow.tier_named(tenant_queue, name)
    return tier and tier.free or HUGE
  end
  local bucket = flow.bucket_of(blocker)
  if bucket.places <= 0 then return 0 end
  return math.min(bucket.places, bucket.starts), bucket.at
end

-- Put names back into the heads, and notify the workers of their queues. Returns: how many names.
local function bring_back(found)
  local names, heads, touched, queues, tenant_queues = {}, {}, {}, {}, {}
  for i = 1, #found, 2 do
    local name = string.sub(found[i], 9)
    push(names, name)
    local task = string.find(name, ',.*,')
    local lane = task and lane_of(name) or { tenant_queue = name, tenant = string.match(name, '^[^,]*'), queue = string.match(name, ',(.*)$') }
    if lane.limit_keys then
      push(in_(heads, lane.plain), found[i + 1], found[i])
    else
      redis.call('HDEL', K .. ':tops', name)
    end
    touched[lane.plain or lane.tenant_queue] = lane
    tenant_queues[lane.tenant_queue] = (tenant_queues[lane.tenant_queue] or 0) + 1
    queues[lane.queue] = true
  end
  send('HDEL', K .. ':blocker_of', names)
  for tenant_queue, number in pairs(tenant_queues) do count_blocked(tenant_queue, -number) end
  for name, scores in pairs(heads) do send('ZADD', K .. ':heads:' .. name, scores) end
  for _, lane in pairs(touched) do (lane.plain and flow.settle_plain or settle_tenant_queue)(lane) end
  for queue in pairs(queues) do
    if not notified[queue] then publish('work/' .. queue) end
    notified[queue] = true
  end
  return #names
end

-- Unblock the first names behind a blocker if it has room: as many as may start, and a few more in case of other blockers.
function flow.unblock(blocker, most)
  local free, at = room_behind(blocker)
  if free <= 0 then
    redis.call('SREM', K .. ':dirty', blocker)
    if at then redis.call('ZADD', K .. ':wakes', stamp(at), blocker) else redis.call('ZREM', K .. ':wakes', blocker) end
    return 0
  end
  most = most or math.min(math.max(FEW, free), MOST)
  local found = redis.call('ZRANGE', blocked_key(blocker), 0, most - 1, 'WITHSCORES')
  redis.call('ZREMRANGEBYRANK', blocked_key(blocker), 0, most - 1)
  local number = bring_back(found)
  if redis.call('EXISTS', blocked_key(blocker)) == 0 then
    forget_blocker(blocker)
  else
    redis.call('ZREM', K .. ':wakes', blocker)
    redis.call('SADD', K .. ':dirty', blocker)
  end
  return number
end

function flow.unblock_due(most)
  local number = 0
  for _, blocker in ipairs(redis.call('ZRANGEBYSCORE', K .. ':wakes', '-inf', stamp(now), 'LIMIT', '0', most)) do
    number = number + flow.unblock(blocker)
  end
  return number
end

local function unblock_freed()
  local names, tenant_queues = freed, opened
  buckets, tiers, freed, opened = {}, {}, {}, {}
  for name, ids in pairs(names) do send('SREM', K .. ':places:' .. name, ids) end
  for name in pairs(names) do
    local limit = string.match(name, '^([^=]*)=')
    if redis.call('EXISTS', blocked_key(name)) == 1 then
      flow.unblock(name)
    elseif limit and redis.call('EXISTS', K .. ':places:' .. name) == 0 then
      redis.call('SREM', K .. ':keys:' .. limit, name)
    end
  end
  for tenant_queue in pairs(tenant_queues) do
    for _, tier in ipairs(tiers_of(tenant_queue) or {}) do
      local level = tenant_queue .. '^' .. tier.name
      if redis.call('EXISTS', blocked_key(level)) == 1 then flow.unblock(level) end
    end
  end
end

-- Write the starts that were gathered, free the places of ended runs.
function flow.flush()
  if not (next(buckets) or next(tiers) or next(freed) or next(opened)) then return end
  for _, bucket in pairs(buckets) do
    if #bucket.ids > 0 then write_starts(bucket) end
  end
  unblock_freed()
end

flow.FEW, flow.MOST = FEW, MOST

end
