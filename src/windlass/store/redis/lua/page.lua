-- Jobs of one line in order of arrival.
-- ARGV[2..]  line, after (place), most, most chunks, state, …
-- Output     the place reached, '1' if the line ends here else '0', then the jobs
local line, after, most, most_chunks = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local out = { '', '0' }
local chunks = redis.call('ZRANGEBYSCORE', K .. ':chunks:' .. line, chunk_of(after + 1), '+inf', 'LIMIT', 0, most_chunks)
local found = 0
for _, chunk in ipairs(chunks) do
  local places, ids = {}, {}
  for i = 6, #ARGV do
    local log = redis.call('HGETALL', log_key(line, ARGV[i], chunk))
    for j = 1, #log, 2 do
      local place = tonumber(log[j])
      if place > after then
        places[#places + 1] = place
        ids[place] = log[j + 1]
      end
    end
  end
  table.sort(places)
  for _, place in ipairs(places) do
    local job = load(ids[place])
    if job then answer(job, meta_of(job), out) end
    after, found = place, found + 1
    if found == most then
      out[1] = string.format('%d', after)
      return out
    end
  end
  after = math.max(after, (tonumber(chunk) + 1) * CHUNK - 1)
end
if #chunks < most_chunks then out[2] = '1' end
out[1] = string.format('%d', after)
return out
