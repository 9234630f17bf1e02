-- Put rules in force.
-- ARGV[2..]  edition; 'next' = only if it is the next one, 'later' = if it is a later one; grouping; the rules, opaque here;
--            number of allowances, name, allowance, …; the same for tiers, fair, shut and the letters of queues (see flow.lua)
-- Output     1 if they were, else 0
local edition, current = tonumber(ARGV[2]), tonumber(redis.call('HGET', K .. ':flow', '@') or 0)
if ARGV[3] == 'next' and edition ~= current + 1 or edition <= current then return 0 end
redis.call('SET', K .. ':rules', ARGV[5])

local function pairs_of(words)
  local found = {}
  for i = 1, #words, 2 do found[words[i]] = words[i + 1] end
  return found
end

-- Write the next section of the arguments; what it was before and is now, and the names that differ.
local at = 6
local function write(key)
  local words, before = {}, pairs_of(redis.call('HGETALL', key))
  for i = at + 1, at + 2 * ARGV[at] do push(words, ARGV[i]) end
  at = at + 1 + 2 * ARGV[at]
  redis.call('DEL', key)
  send('HSET', key, words)
  local after, changed = pairs_of(words), {}
  for name, value in pairs(before) do changed[name] = after[name] ~= value or nil end
  for name, value in pairs(after) do changed[name] = before[name] ~= value or nil end
  return before, after, changed
end

local _, _, allowances = write(K .. ':allowances')
local _, _, tiers = write(K .. ':tiers')
local fair_before, fair, fair_changed = write(K .. ':fair')
local _, _, shut = write(K .. ':shut')

local grouped = {}
for queue, letters in pairs(pairs_of(redis.call('HGETALL', K .. ':flow'))) do
  if string.find(letters, 'b', 1, true) then grouped[queue] = true end
end
local _, letters = write(K .. ':flow')
for queue in pairs(grouped) do redis.call('HSET', K .. ':flow', queue, (letters[queue] or '') .. 'b') end
redis.call('HSET', K .. ':flow', '#', ARGV[4], '@', ARGV[2])

-- Running jobs of lines whose tiers have changed count at those of the same name.
for line in pairs(tiers) do
  local ids = redis.call('ZRANGE', K .. ':levels:' .. line, 0, -1)
  for _, id in ipairs(ids) do
    local tier = flow().tier_named(line, string.match(redis.call('HGET', K .. ':assigned', id), ' (.*)$'))
    redis.call('ZADD', K .. ':levels:' .. line, tier and tier.number or 0, id)
  end
end
flush()

-- Turns begin where they were not taken before, and are forgotten where they no longer are.
local function takes_turns(rules, level)
  local queue = string.match(level, ',(.*)$')
  return rules[level] or (queue and rules['*,' .. queue])
end

local function turn_over(level)
  local was, is = takes_turns(fair_before, level), takes_turns(fair, level)
  if was and not is then
    redis.call('DEL', K .. ':tags:' .. level, K .. ':turns:' .. level)
    redis.call('HDEL', K .. ':clocks', level)
  elseif is and not was then
    redis.call('ZUNIONSTORE', K .. ':tags:' .. level, 1, K .. ':heads:' .. level, 'WEIGHTS', 0)
  end
end

if next(fair_changed) then
  local levels = {}
  for _, line in ipairs(redis.call('ZRANGE', K .. ':lines', 0, -1)) do
    levels[line], levels[string.match(line, ',(.*)$')] = true, true
  end
  for _, level in ipairs(redis.call('HKEYS', K .. ':clocks')) do levels[level] = true end
  for level in pairs(levels) do turn_over(level) end
end

-- What was held up by something that has changed may come back: at once as far as that is few, else by and by.
local function concerns(obstacle)
  if string.sub(obstacle, 1, 1) == '!' then return shut[string.sub(obstacle, 2)] end
  local line = string.match(obstacle, '^(.*)%^')
  if line then return tiers[line] end
  return allowances[string.match(obstacle, '^[^=]*')]
end

local budget = MOST
for _, obstacle in ipairs(redis.call('SMEMBERS', K .. ':obstacles')) do
  if concerns(obstacle) then
    if string.sub(obstacle, 1, 1) == '!' then
      while flow().wake(obstacle, MOST) > 0 do end
    elseif budget > 0 then
      budget = budget - 1 - flow().wake(obstacle)
    else
      redis.call('SADD', K .. ':ajar', obstacle)
    end
  end
end
return 1
