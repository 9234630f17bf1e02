-- Flow control: which queued jobs a claim may take, beyond whose turn it is. The keys, and what keeps them.
--
--   K:rules                 string  the rules in force, opaque here
--   K:flow                  hash    '#' -> their grouping, '@' -> their edition; queue, or '*' = every queue -> letters: q = its tenants take
--                                   turns, l = tasks of a line do, s = lanes may be shut, b = it has had groups
--   K:allowances            hash    allowance -> running, count, per (us), burst, closed until (us); '-' = none
--   K:tiers                 hash    line -> name, seconds, cap, … of its tiers
--   K:fair                  hash    queue, line or '*,queue' -> '1'; that, a space and a tenant or task -> its weight
--   K:shut                  hash    pattern -> until when (us)
--   K:holds                 zset    buckets on hold by the end of it
--   K:groups                zset    routes with a group that have queued jobs, by name
--   K:heads:<lane>          zset    groups of a lane, as lanes in the heads of their line: sequence .. route
--   K:places:<bucket>       set     ids of its running jobs
--   K:keys:<allowance>      set     its buckets with a key that have running or parked jobs
--   K:starts:<bucket>       list    when jobs of it started, as far as that is in the window
--   K:tokens:<bucket>       string  tokens left, and of the clock that brings new ones: its start, and how many it has brought
--   K:assigned              hash    id -> seconds and name of the tier at which a job runs
--   K:levels:<line>         zset    those jobs by the number of their tier (0 = it is no more)
--   K:parked:<obstacle>     zset    routes, lanes and lines that it holds up, as in the heads
--   K:parks                 hash    route, lane or line -> the obstacle that holds it up; then it is in no heads
--   K:passed                hash    queue, or line -> how many of those lie in it
--   K:obstacles             set     those that hold something up
--   K:wakes                 zset    obstacles by the time when they pass
--   K:ajar                  set     obstacles that have let some pass and may let more
--   K:tags:<queue or line>  zset    where members take turns, those that have something to offer: score = start tag, member as in the heads
--   K:turns:<queue or line> zset    members by their finish tag, if it is beyond the clock; forgotten when nobody waits there
--   K:clocks                hash    queue or line -> its virtual time
--
-- A route is a lane, and of a job with a group a semicolon and the group. An obstacle is a bucket, a level ('line^tier') or what shuts
-- a lane ('!pattern'). What meets one is parked behind it, and costs nothing until the obstacle lets it pass again.
-- All of it is made only where it is needed: a call for plain jobs in a plain queue makes none of these functions.

local FEW, MOST, HUGE = 16, 1000, 1000000000
-- The server's clock may differ from the one we are told, if we are: nothing expires earlier than it must.
local spare_ms = ARGV[1] == '0' and 1000 or 3600000

local made, modes = {}, {}

local function mode_of(queue)
  local mode = modes[queue]
  if mode == nil then
    local found = redis.call('HMGET', K .. ':flow', queue, '*')
    mode = (found[1] or found[2]) and (found[1] or '') .. (found[2] or '') or false
    modes[queue] = mode
  end
  return mode
end

local function flow_control()
  local buckets, tiers, fair, freed, opened, told, dry = {}, {}, {}, {}, {}, {}, {}

  local function lets(queue, letter) return string.find(mode_of(queue) or '', letter, 1, true) ~= nil end
  local function first_in(key) return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES') end
  local function parked_key(obstacle) return K .. ':parked:' .. obstacle end

  -- Turns

  -- What holds the weights of a line's tasks; false = they take no turns.
  local function fair_line(lane)
    if fair[lane.line] == nil then
      local any = '*,' .. lane.queue
      local found = lets(lane.queue, 'l') and redis.call('HMGET', K .. ':fair', lane.line, any) or {}
      fair[lane.line] = found[1] and lane.line or found[2] and any or false
    end
    return fair[lane.line]
  end

  local function fair_queue(lane) return lets(lane.queue, 'q') end

  local function exact(number) return string.format('%.17g', number) end

  -- A member's first job has become another one; none before = it has something to offer again, none now = nothing any more.
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
      local clock, finish = redis.call('HGET', K .. ':clocks', level) or 0, redis.call('ZSCORE', K .. ':turns:' .. level, name) or 0
      tag = exact(math.max(tonumber(clock), tonumber(finish)))
    end
    redis.call('ZADD', tags, tag, after)
  end

  -- A member is served one job. `turn` = the tag of the one whose turn it is, if that is known: being preferred moves no clock.
  local function charge(level, name, weights, own, turn)
    local top = redis.call('HGET', K .. ':tops', name)
    local seat = string.sub(top, string.find(top, ' ', 1, true) + 1)
    local start = tonumber(redis.call('ZSCORE', K .. ':tags:' .. level, seat))
    local weight = tonumber(redis.call('HGET', K .. ':fair', weights .. ' ' .. own) or 1)
    local clock = math.max(tonumber(redis.call('HGET', K .. ':clocks', level) or 0), turn or start)
    local finish = exact(start + 1 / weight)
    redis.call('HSET', K .. ':clocks', level, exact(clock))
    redis.call('ZADD', K .. ':turns:' .. level, finish, name)
    redis.call('ZREMRANGEBYSCORE', K .. ':turns:' .. level, '-inf', exact(clock))
    redis.call('ZADD', K .. ':tags:' .. level, finish, seat)
  end

  local function serve(lane, turns)
    if fair_line(lane) then charge(lane.line, lane.name, fair_line(lane), lane.task, turns.turn) end
    if fair_queue(lane) then charge(lane.queue, lane.line, lane.queue, lane.tenant, turns.turn_of_tenant) end
  end

  -- At the end of a call: where nobody waits any more, not even behind an obstacle, what anybody has had of turns is forgotten.
  local function end_rounds()
    for level in pairs(dry) do
      if redis.call('EXISTS', K .. ':tags:' .. level) == 0 and not redis.call('HGET', K .. ':passed', level) then
        redis.call('UNLINK', K .. ':turns:' .. level)
        redis.call('HDEL', K .. ':clocks', level)
      end
    end
    dry = {}
  end

  -- Places in the heads

  -- So many names of a line are parked more.
  local function count_passed(line, by)
    for _, level in ipairs({ line, string.match(line, ',(.*)$') }) do
      if redis.call('HINCRBY', K .. ':passed', level, by) == 0 then
        redis.call('HDEL', K .. ':passed', level)
        dry[level] = true
      end
    end
  end

  local function line_of(name) return string.match(name, '^[^,]*,[^,]*') end

  -- Nothing is behind an obstacle any more.
  local function forget(obstacle)
    redis.call('SREM', K .. ':obstacles', obstacle)
    redis.call('SREM', K .. ':ajar', obstacle)
    redis.call('ZREM', K .. ':wakes', obstacle)
    local allowance = string.match(obstacle, '^([^=^!]*)=')
    if allowance and redis.call('EXISTS', K .. ':places:' .. obstacle) == 0 then
      redis.call('SREM', K .. ':keys:' .. allowance, obstacle)
    end
  end

  -- Like `lift`, wherever the name is now; whether it changed where a claim looks, and its member there before and after.
  local function seat(name, heads, first, may_be_parked)
    local obstacle = may_be_parked and redis.call('HGET', K .. ':parks', name)
    local old = redis.call('HGET', K .. ':tops', name)
    local after = first[1] and string.sub(first[1], 1, 8) .. name
    local top = after and first[2] .. ' ' .. after
    if old == (top or false) then return false end
    local where, before = obstacle and parked_key(obstacle) or heads, old and string.sub(old, string.find(old, ' ', 1, true) + 1)
    if before then redis.call('ZREM', where, before) end
    if after then
      redis.call('ZADD', where, first[2], after)
      redis.call('HSET', K .. ':tops', name, top)
    else
      redis.call('HDEL', K .. ':tops', name)
      if obstacle then
        redis.call('HDEL', K .. ':parks', name)
        count_passed(line_of(name), -1)
        if redis.call('EXISTS', where) == 0 then forget(obstacle) end
      end
    end
    return not obstacle, before, after
  end

  -- A plain job or a group may be the first of a lane.
  local function first_of(lane)
    local plain, group = first_in(K .. ':ready:' .. lane.name), first_in(K .. ':heads:' .. lane.name)
    if not group[1] then return plain end
    if not plain[1] then return group end
    local a, b = tonumber(plain[2]), tonumber(group[2])
    return (a < b or (a == b and string.sub(plain[1], 1, 8) < string.sub(group[1], 1, 8))) and plain or group
  end

  local function settle_line(lane)
    local changed, before, after = seat(lane.line, K .. ':heads:' .. lane.queue, first_in(K .. ':heads:' .. lane.line), lets(lane.queue, 's'))
    if changed and fair_queue(lane) then retag(lane.queue, lane.line, before, after) end
  end

  local function settle_lane(lane)
    local changed, before, after = seat(lane.name, K .. ':heads:' .. lane.line, first_of(lane), lets(lane.queue, 's'))
    if not changed then return end
    if fair_line(lane) then retag(lane.line, lane.name, before, after) end
    settle_line(lane)
  end

  -- The queued jobs of a route have changed.
  local function settle_group(route)
    if not route.group then return true end
    local changed, before, after = seat(route.route, K .. ':heads:' .. route.name, first_in(K .. ':ready:' .. route.route), true)
    if not before and after then redis.call('ZADD', K .. ':groups', 0, route.route) end
    if before and not after then redis.call('ZREM', K .. ':groups', route.route) end
    return changed
  end

  local function raise(route)
    if route.group and not lets(route.queue, 'b') then
      redis.call('HSET', K .. ':flow', route.queue, (redis.call('HGET', K .. ':flow', route.queue) or '') .. 'b')
      modes[route.queue] = (mode_of(route.queue) or '') .. 'b'
    end
    if settle_group(route) then settle_lane(route) end
  end

  -- Take a name out of the heads until the obstacle is gone, or that time has come; its member there.
  local function park(name, heads, obstacle, at)
    local top = redis.call('HGET', K .. ':tops', name)
    local space = string.find(top, ' ', 1, true)
    local own = string.sub(top, space + 1)
    redis.call('ZREM', heads, own)
    redis.call('ZADD', parked_key(obstacle), string.sub(top, 1, space - 1), own)
    redis.call('HSET', K .. ':parks', name, obstacle)
    count_passed(line_of(name), 1)
    redis.call('SADD', K .. ':obstacles', obstacle)
    if at then redis.call('ZADD', K .. ':wakes', stamp(at), obstacle) end
    local allowance = string.match(obstacle, '^([^=^!]*)=')
    if allowance then redis.call('SADD', K .. ':keys:' .. allowance, obstacle) end
    return own
  end

  local function park_group(route, obstacle, at) park(route.route, K .. ':heads:' .. route.name, obstacle, at) end

  -- What shuts a lane, until when, and whether it shuts the whole line. Whole queues are not looked for.
  local function shut_by(lane)
    if not lets(lane.queue, 's') then return nil end
    local t, q, k = lane.tenant, lane.queue, lane.task
    local patterns = { t .. ',' .. q .. ',*', t .. ',*,*', lane.name, '*,' .. q .. ',' .. k, t .. ',*,' .. k, '*,*,' .. k }
    local times, best, at = redis.call('HMGET', K .. ':shut', unpack(patterns)), nil, now
    for i, time in ipairs(times) do
      if time and tonumber(time) > at then best, at = i, tonumber(time) end
    end
    return best and '!' .. patterns[best], at, best and best <= 2
  end

  -- Until when a whole queue is shut; nil = it is open.
  local function queue_shut(queue)
    if not lets(queue, 's') then return nil end
    local times = redis.call('HMGET', K .. ':shut', '*,' .. queue .. ',*', '*,*,*')
    local at = math.max(tonumber(times[1] or 0), tonumber(times[2] or 0))
    return at > now and at or nil
  end

  -- Park a lane that is shut, or its whole line; whether it was.
  local function pass_shut(lane)
    local obstacle, at, whole = shut_by(lane)
    if not obstacle then return false end
    if whole then
      local own = park(lane.line, K .. ':heads:' .. lane.queue, obstacle, at)
      if fair_queue(lane) then retag(lane.queue, lane.line, own, nil) end
    else
      local own = park(lane.name, K .. ':heads:' .. lane.line, obstacle, at)
      if fair_line(lane) then retag(lane.line, lane.name, own, nil) end
      settle_line(lane)
    end
    return true
  end

  -- Buckets

  -- Starts that the window of a bucket has room for; when there is room again.
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

  local function tokens(bucket)
    local left, from, brought = string.match(redis.call('GET', K .. ':tokens:' .. bucket.name) or '', '^(%S+) (%S+) (%S+)$')
    left, from, brought = tonumber(left or bucket.burst), tonumber(from or now), tonumber(brought or 0)
    local all = math.floor((now - from) * bucket.count / bucket.per)
    left = left + all - brought
    if left >= bucket.burst then left, from, all = bucket.burst, now, 0 end
    bucket.from, bucket.brought = from, all
    return left, left == 0 and from + math.ceil((all + 1) * bucket.per / bucket.count) or nil
  end

  -- A bucket with its free places, the starts it allows now, and when its clock lets the next job start (nil = now).
  local function bucket_of(name)
    local bucket = buckets[name]
    if bucket then return bucket end
    bucket = { name = name, places = HUGE, starts = HUGE, ids = {}, allowance = string.match(name, '^[^=]*') }
    buckets[name] = bucket
    local rule = redis.call('HGET', K .. ':allowances', bucket.allowance)
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

  local function tiers_of(line)
    local found = tiers[line]
    if found == nil then
      local text = redis.call('HGET', K .. ':tiers', line)
      found = text and {}
      for name, seconds, cap in string.gmatch(text or '', '(%S+) (%S+) (%S+)') do
        local number = #found + 1
        local taken = number > 1 and redis.call('ZCOUNT', K .. ':levels:' .. line, number, '+inf') or -HUGE
        found[number] = { name = name, seconds = seconds, free = tonumber(cap) - taken, number = number }
      end
      tiers[line] = found
    end
    return found
  end

  local function tier_named(line, name)
    for _, tier in ipairs(tiers_of(line) or {}) do
      if tier.name == name then return tier end
    end
  end

  -- Where a job of a route would start: the tier, or nil and the level that has no room. Nil alone = nothing bounds its time.
  local function tier_for(route)
    local letter = string.sub(route.group, 1, 1)
    if letter ~= '=' and letter ~= '~' then return nil end
    local all, best = tiers_of(route.line), nil
    local wanted = letter == '=' and tier_named(route.line, string.match(route.group, '^=([^|]*)'))
    for _, tier in ipairs(all or {}) do
      if tier.free <= 0 then return not wanted and best, wanted and route.line .. '^' .. tier.name end
      best = tier
      if tier == wanted then break end
    end
    return best
  end

  local function note_tier(id, line, tier)
    redis.call('HSET', K .. ':assigned', id, tier.seconds .. ' ' .. tier.name)
    redis.call('ZADD', K .. ':levels:' .. line, tier.number, id)
  end

  -- Starts

  local function buckets_of(route)
    if not route.buckets then
      route.buckets = {}
      for name in string.gmatch(route.group or '', '|([^|]+)') do push(route.buckets, name) end
    end
    return route.buckets
  end

  -- How many jobs of a route may start now; if none, what holds them up, and until when if it is a clock: of several obstacles a place
  -- rather than a clock, of clocks the latest.
  local function admit(route)
    local free, obstacle, at = HUGE, nil, nil
    for _, name in ipairs(buckets_of(route)) do
      local bucket = bucket_of(name)
      if bucket.places <= 0 then return 0, name, nil end
      if bucket.starts <= 0 and (not at or (bucket.at or HUGE * HUGE) > at) then obstacle, at = name, bucket.at or HUGE * HUGE end
      free = math.min(free, bucket.places, bucket.starts)
    end
    local tier, level = tier_for(route)
    if level then return 0, level, nil end
    if obstacle then return 0, obstacle, at < HUGE * HUGE and at or nil end
    return tier and math.min(free, 1) or free
  end

  local function is_held_up(route) return admit(route) <= 0 or queue_shut(route.queue) ~= nil or shut_by(route) ~= nil end

  -- A job starts; '' or the seconds and the name of its tier.
  local function take(route, id)
    for _, name in ipairs(buckets_of(route)) do
      local bucket = bucket_of(name)
      bucket.places, bucket.starts = bucket.places - 1, bucket.starts - 1
      push(bucket.ids, id)
    end
    local tier = tier_for(route)
    if not tier then return '' end
    note_tier(id, route.line, tier)
    for number = 2, tier.number do tiers[route.line][number].free = tiers[route.line][number].free - 1 end
    return tier.seconds .. ' ' .. tier.name
  end

  local function write_starts(bucket)
    local number = #bucket.ids
    send('SADD', K .. ':places:' .. bucket.name, bucket.ids)
    if bucket.name ~= bucket.allowance then redis.call('SADD', K .. ':keys:' .. bucket.allowance, bucket.name) end
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
    if bucket.starts > 0 or redis.call('EXISTS', parked_key(bucket.name)) == 0 then return end
    local _, at = (bucket.burst and tokens or window)(bucket)
    if at then redis.call('ZADD', K .. ':wakes', stamp(at), bucket.name) end
  end

  -- A running job goes on at a shorter tier.
  local function shrink(id, route, assigned)
    local seconds, name = string.match(assigned, '^(%S+) (.*)$')
    local tier = tier_named(route.line, name)
    note_tier(id, route.line, { name = name, seconds = seconds, number = tier and tier.number or 0 })
    opened[route.line] = true
  end

  -- A run has ended: its places are free. They are given back by `flush`.
  local function give_back(id, route, assigned)
    for _, name in ipairs(buckets_of(route)) do push(in_(freed, name), id) end
    if assigned or string.find(route.group or '', '^[=~]') then
      redis.call('HDEL', K .. ':assigned', id)
      redis.call('ZREM', K .. ':levels:' .. route.line, id)
      opened[route.line] = true
    end
  end

  -- Coming back

  -- What an obstacle has room for, and when it has if that is by a clock.
  local function room_behind(obstacle)
    if string.sub(obstacle, 1, 1) == '!' then
      local at = tonumber(redis.call('HGET', K .. ':shut', string.sub(obstacle, 2)) or 0)
      return at > now and 0 or HUGE, at
    end
    local line, name = string.match(obstacle, '^(.*)%^(.*)$')
    if line then
      local tier = tier_named(line, name)
      return tier and tier.free or HUGE
    end
    local bucket = bucket_of(obstacle)
    if bucket.places <= 0 then return 0 end
    return math.min(bucket.places, bucket.starts), bucket.at
  end

  -- Put names that were parked where claims look, and tell whoever waits for work.
  local function bring_back(found)
    local names, heads, touched, queues, lines = {}, {}, {}, {}, {}
    for i = 1, #found, 2 do
      local name = string.sub(found[i], 9)
      push(names, name)
      local task = string.find(name, ',.*,')
      local lane = task and lane_of(name) or { line = name, tenant = string.match(name, '^[^,]*'), queue = string.match(name, ',(.*)$') }
      if lane.group then
        push(in_(heads, lane.name), found[i + 1], found[i])
      else
        redis.call('HDEL', K .. ':tops', name)
      end
      touched[lane.name or lane.line] = lane
      lines[lane.line] = (lines[lane.line] or 0) + 1
      queues[lane.queue] = true
    end
    send('HDEL', K .. ':parks', names)
    for line, number in pairs(lines) do count_passed(line, -number) end
    for name, scores in pairs(heads) do send('ZADD', K .. ':heads:' .. name, scores) end
    for _, lane in pairs(touched) do (lane.name and settle_lane or settle_line)(lane) end
    for queue in pairs(queues) do
      if not told[queue] then publish('work/' .. queue) end
      told[queue] = true
    end
    return #names
  end

  -- Let the first of what an obstacle holds up come back, if it has room: as many as may start, and a few more in case of other obstacles.
  local function wake(obstacle, most)
    local free, at = room_behind(obstacle)
    if free <= 0 then
      redis.call('SREM', K .. ':ajar', obstacle)
      if at then redis.call('ZADD', K .. ':wakes', stamp(at), obstacle) else redis.call('ZREM', K .. ':wakes', obstacle) end
      return 0
    end
    most = most or math.min(math.max(FEW, free), MOST)
    local found = redis.call('ZRANGE', parked_key(obstacle), 0, most - 1, 'WITHSCORES')
    redis.call('ZREMRANGEBYRANK', parked_key(obstacle), 0, most - 1)
    local number = bring_back(found)
    if redis.call('EXISTS', parked_key(obstacle)) == 0 then
      forget(obstacle)
    else
      redis.call('ZREM', K .. ':wakes', obstacle)
      redis.call('SADD', K .. ':ajar', obstacle)
    end
    return number
  end

  local function wake_due(most)
    local number = 0
    for _, obstacle in ipairs(redis.call('ZRANGEBYSCORE', K .. ':wakes', '-inf', stamp(now), 'LIMIT', '0', most)) do
      number = number + wake(obstacle)
    end
    return number
  end

  local function wake_freed()
    local names, lines = freed, opened
    buckets, tiers, freed, opened = {}, {}, {}, {}
    for name, ids in pairs(names) do send('SREM', K .. ':places:' .. name, ids) end
    for name in pairs(names) do
      local allowance = string.match(name, '^([^=]*)=')
      if redis.call('EXISTS', parked_key(name)) == 1 then
        wake(name)
      elseif allowance and redis.call('EXISTS', K .. ':places:' .. name) == 0 then
        redis.call('SREM', K .. ':keys:' .. allowance, name)
      end
    end
    for line in pairs(lines) do
      for _, tier in ipairs(tiers_of(line) or {}) do
        local level = line .. '^' .. tier.name
        if redis.call('EXISTS', parked_key(level)) == 1 then wake(level) end
      end
    end
  end

  local function flush()
    for _, bucket in pairs(buckets) do
      if #bucket.ids > 0 then write_starts(bucket) end
    end
    wake_freed()
  end

  return {
    lets = lets, fair_line = fair_line, fair_queue = fair_queue, serve = serve, first_of = first_of, raise = raise,
    settle_group = settle_group, settle_lane = settle_lane, park_group = park_group, pass_shut = pass_shut, queue_shut = queue_shut,
    bucket_of = bucket_of, buckets_of = buckets_of, tier_named = tier_named, shrink = shrink, admit = admit, is_held_up = is_held_up, take = take,
    give_back = give_back, wake = wake, wake_due = wake_due, flush = flush, end_rounds = end_rounds,
  }
end

-- Whether a script cannot deal with the jobs of a route (see plain.lua).
local function is_beyond() return false end

local function flow()
  made.control = made.control or flow_control()
  return made.control
end
