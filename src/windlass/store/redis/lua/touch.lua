-- Signs of life of running jobs.
-- ARGV[2..]  lease (us); per job: id, token, pid ('' = unchanged), progress ('' = unchanged), what runs it ('' = unchanged), pieces of output, stream .. bytes, …
-- Output     per job: 1 or 0 (held), reason, the job's bytes as `meta_of` makes them if it runs at a tier, else ''
local until_ = stamp(now + tonumber(ARGV[2]))

-- Keep pieces of output, and no more than so many and so much.
local function put_out(job, from, to)
  local key = K .. 'o' .. job.id
  local n, finish = 0, 0
  local last = redis.call('LINDEX', key, '-1')
  if last then
    n, finish = struct.unpack(CHUNK_HEAD, last)
    finish = finish + #last - CHUNK_HEAD_SIZE
  end
  for i = from, to do
    local piece = ARGV[i]
    n = n + 1
    redis.call('RPUSH', key, struct.pack(CHUNK_HEAD, n, finish, job[ATTEMPT], now, string.byte(piece)) .. string.sub(piece, 2))
    finish = finish + #piece - 1
  end
  while true do
    local oldest = redis.call('LINDEX', key, '0')
    if not oldest then return end
    local number, start, _, _, stream = struct.unpack(CHUNK_HEAD, oldest)
    if stream ~= NO_STREAM and n - number < MOST_PIECES and finish - start <= MOST_OUTPUT then return end
    redis.call('LPOP', key)
  end
end

local out, i = {}, 3
while i <= #ARGV do
  local id, token, pid, progress, ran, pieces = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], tonumber(ARGV[i + 5])
  local job = load(id)
  local mine = job and job[STATE] == RUNNING and job.run[TOKEN] == token
  if mine then
    push(in_(added, ':leases'), until_, id)
    if progress ~= '' then
      mark(job, PROGRESS)
      job[UPDATED] = now
      redis.call('HSET', K .. ':progress', id, progress)
    end
    if pieces > 0 then
      mark(job, EXTRAS)
      put_out(job, i + 6, i + 5 + pieces)
    end
    if pid ~= '' then job.run[PID], job[UPDATED] = tonumber(pid), now end
    if ran ~= '' then job.run[NODE] = placed(job.run[NODE], ran) end
    if pid ~= '' or progress ~= '' or ran ~= '' or pieces > 0 then save_run(job) end
  end
  push(out, mine and 1 or 0, mine and job[REASON] or 0)
  push(out, mine and job.assigned and meta_of(job) or '')
  i = i + 6 + pieces
end
flush()
return out
