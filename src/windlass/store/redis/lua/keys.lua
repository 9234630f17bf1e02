-- The keyspace and the shape of a job. Every script begins with this file, flow.lua and moves.lua;
-- no key is spelled anywhere else.
--
-- KEYS[1]  K, the prefix with its hash tag: 'wl{0}'. All keys of one script share that tag, hence one slot.
-- ARGV[1]  now in microseconds, or 0 = the server's own clock (always 0 but in tests and simulations)
--
-- An <id> below is a job's key: the sixteen bytes of its id, then the name of its tenant unless that is 'default'. So the same id in two
-- tenants is two jobs. Bare ids are only where the tenant is known: of what a job waits for, and of what waits for it.
--
--   Kj<id>                  string  the job: head, route, terms, run, payload (below)
--   Kr<id>                  string  its result: content type, a zero byte, data
--   Ke<id>                  list    its errors, oldest first
--   Ko<id>                  list    the newest of its output, oldest first: each with CHUNK_HEAD below, then its bytes
--   Ki<id>                  list    what was sent to it for its current or next run, oldest first: each with MESSAGE_HEAD below, then its bytes;
--                                   the first is the last that the run has taken (number 0 if none), without its bytes
--   Kh<id>                  string  how its result is kept, if that has a time of its own (TIMED), with HOLD below
--   Kf<id>                  string  the files that came with it, opaque here
--   Ka<id>                  string  ids of the jobs that a blocked one still waits for, one after the other
--   Kc<id>                  set     ids of the jobs that wait for it, which are its tenant's
--   Kt<id>                  string  what is to follow it, opaque here
--   Kk<id>                  string  its result, read already, as long as it is wanted for what follows
--   K:ripe                  zset    followed jobs that ended or vanished, until that is dealt with: member = bare id .. tenant, score = number of
--                                   the end * 8 + state; its children and what follows it then outlive their job
--   K:ripening              int     the last number given to an end
--   K:blocked:<line>        zset    blocked jobs of a line by place
--   K:seq                   int     the last arrival sequence given out
--   K:pos                   hash    line -> the last place given out in it
--   K:lines                 zset    lines that hold jobs, by name
--   K:tenants               set     tenants that hold jobs
--   K:ready:<route>         zset    queued jobs of a lane, or of a group in it: score = priority, member = sequence (8 bytes) .. id
--   K:heads:<line>          zset    lanes of a line that have queued jobs: score, member = those of its first job, sequence .. lane
--   K:heads:<queue>         zset    the same for the lines of a queue: sequence .. line
--   K:tops                  hash    lane or line -> its member in the heads, to find it again
--   K:due                   zset    scheduled jobs by due time
--   K:stale                 zset    jobs never started, by the time they expire
--   K:unattended            zset    pending jobs with an owner clock, by the time they are abandoned
--   K:runs                  hash    id -> the current run of a running job, with LIVE below
--   K:leases                zset    running jobs by the end of their lease
--   K:gone                  zset    finished jobs by the time they are dropped (absent = kept for ever); one with a result that has a time
--                                   of its own by that, until it has come
--   K:log:<line>:<kind>:<chunk>  hash  place in the chunk (a byte) -> id, for listings; kind = pending, or a finished state;
--                                  64 places a chunk, so that it stays a compact listpack
--   K:chunks:<line>         zset    chunks of a line that hold jobs
--   K:counts:<tenant>       hash    queue,task,state -> how many
--   K:outcomes:<tenant>     hash    queue,task,outcome -> how many runs ended so; outlives the jobs
--   K:outcomes              hash    tenants that have some; '' -> how many fields those have in all
--   K:progress              hash    id -> what a job last said of how far it is
--   K:held                  hash    worker -> how many jobs it runs
--   K:claim:<worker>,<nonce>,<queue>  string  keys that a claim took from that queue on, each after its length (expires by itself)
--   K:wishes:<queue>        zset    nonces of claims that found nothing there and wait, by the time until which they do
--   K:wish:<nonce>          string  such a claim, with WISH below, until it is sent again or granted (expires by itself)
--   K:awaited               set     ids whose end somebody waits for (expires by itself)
--   K:workers               zset    workers by the time they are taken for dead   (first partition only)
--   K:worker:<id>           hash    a worker's record                             (first partition only)
--   K:marks                 hash    journal -> the sequence up to which it has been drained into this partition
--   {PREFIX:partitions}:layout  string  2 = the layout described here (in 1 the tenant was no part of a key); not in a partition
--   K:stirred               string  written so that what is asked of replicas then speaks of everything before it
--   K:shelf:<kind>          hash    name -> a record beside the jobs              (first partition only)
--
-- A line is one tenant's queue ('tenant,queue'), a lane is one task in it ('tenant,queue,task', also a job's route unless it has a
-- group: see flow.lua, where the keys of flow control are).
-- The comma sorts before every character of a name, so lines sort by tenant, then queue.
--
-- A job is one string, so that a waiting job is one key and one member:
--   head     68 bytes with HEAD below
--   route    up to a zero byte
--   terms    what was asked for, opaque here
--   payload  opaque here
--   run      how its last run ended, with ENDED below; only after it has
-- A claim does not touch it: a job that is in `runs` is running, though its head says queued.
--
-- A number given to redis.call is printed with all its digits, which costs as much as the command: what is used for
-- every job is made a text once (`stamp`).

local K = KEYS[1]
local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local HEAD = '>BBBBIBBI8I8HIiI8I8I8d'
local STATE, REASON, FLAGS, ATTEMPT, CRASHES, LOSSES, UPDATED, DUE, RUN_SIZE = 2, 3, 4, 5, 6, 7, 8, 9, 10 -- 1 is the version
local TERMS_SIZE, PRIORITY, SEQ, POS, KEEP, HEAD_FIELDS = 11, 12, 13, 14, 16, 16 -- these never change; 15 is the creation

-- A run: as it is told and handled here, as it is kept while it lasts, and as it is kept afterwards.
local RUN = '>c8II8I8Hss'
local TOKEN, PID, STARTED, FINISHED, CODE, WORKER, NODE = 1, 2, 3, 4, 5, 6, 7
-- While it lasts: token, pid, start, change, reason; what the head said at the claim (flags, attempts before, crashes, losses, change,
-- due time, size of the last run; place; keep), so that a success need not read it; route, worker, node.
local LIVE = '>c8II8I8BBIBBI8I8HI8dsss'
local ENDED = '>II8I8Hss' -- a run without its token
local NO_TOKEN = '\0\0\0\0\0\0\0\0'

-- A claim that waits: lease (us), tenant ('-' = all), worker, node, its tasks with a comma before and after each ('' = any), its queues
-- likewise.
local WISH = '>I8sssss'

local PREFIX = '511' -- read this much at first: nearly always all but the payload

local BLOCKED, SCHEDULED, QUEUED, RUNNING, SUCCEEDED, CANCELLED, GONE = 0, 1, 2, 3, 4, 6, 7 -- as in layout.py; 5 is failed
local PENDING = 3 -- all states up to this share one log: a claim need not touch it
local DELETED = 14 -- the only reason a script looks at

-- Flags. Followed: another job waits for it or is to follow it, or did; extras: it has files, output or input.
local STALE, RESULT, ERRORS, PROGRESS, ONCE, NONE, FOLLOWED, EXTRAS = 1, 2, 4, 8, 16, 32, 64, 128
local TIMED = 48 -- both ONCE and NONE: the result goes before its record does; the rest is in HOLD
local HOLD = '>Bd' -- 1 if it may be read once, else 0; seconds that it is kept

-- A piece of output: number, bytes that came before it, attempt, time, stream. Of stream NO_STREAM: nothing, but the numbers go on from it.
local CHUNK_HEAD = '>I8I8II8B'
local CHUNK_HEAD_SIZE, NO_STREAM = 29, 255
local MOST_OUTPUT, MOST_PIECES = 262144, 1000

-- A message: number, bytes sent with it and before it.
local MESSAGE_HEAD = '>I8I8'
local MOST_INPUT, MOST_MESSAGES, MOST_COLLECTED = 262144, 1000, 4194304

local SEEN_EVERY = 1000000

local ID_SIZE = 16
local DEFAULT_TENANT = 'default'

local CHUNK = 64
local MOST_ERRORS = 100
local MOST_OUTCOMES = 40000 -- four for each of as many tasks as store/beside.py says
local MOST_ARGUMENTS = 4000 -- of one call; Lua's stack has room for twice as many

-- Words

-- A machine, and behind it what a worker says of what ran there, in the place of what was said before.
local function placed(node, ran) return string.match(node, '^[^\31]*') .. ran end

local function push(to, a, b)
  local n = #to
  to[n + 1] = a
  if b then to[n + 2] = b end
end

local function in_(lists, name)
  local found = lists[name]
  if not found then
    found = {}
    lists[name] = found
  end
  return found
end

-- The key of a tenant's job, and back.
local function key_of(id, tenant) return tenant == DEFAULT_TENANT and id or id .. tenant end
local function id_of(key) return string.sub(key, 1, ID_SIZE) end

local function member(seq, id) return struct.pack('>I8', seq) .. id end

local function stamp(time) return string.format('%.0f', time) end

local function publish(topic, what) return redis.call('PUBLISH', string.match(K, '^(.-){') .. '/' .. topic, what or '') end

local function send(command, key, words)
  for from = 1, #words, MOST_ARGUMENTS do
    redis.call(command, key, unpack(words, from, math.min(from + MOST_ARGUMENTS - 1, #words)))
  end
end

local function refuse_rules() return redis.error_reply('STALERULES groups were made under other rules') end

-- Jobs

local function has(job, flag) return bit.band(job[FLAGS], flag) ~= 0 end
local function mark(job, flag) job[FLAGS] = bit.bor(job[FLAGS], flag) end
local function unmark(job, flag) job[FLAGS] = bit.band(job[FLAGS], bit.bnot(flag)) end

-- A lane, or a group in it, by its route, with what is gathered for it (see `flush`): `counts`; `into`, `out`, `ready`, `unready` if any.
local lanes = {}
local function lane_of(route)
  local lane = lanes[route]
  if not lane then
    local tenant, queue, task = string.match(route, '^([^,]*),([^,]*),(.*)$')
    lane = { route = route, name = route, tenant = tenant, queue = queue, task = task, line = tenant .. ',' .. queue }
    local semicolon = string.find(task, ';', 1, true)
    if semicolon then
      lane.task, lane.group = string.sub(task, 1, semicolon - 1), string.sub(task, semicolon + 1)
      lane.name = lane.line .. ',' .. lane.task
    end
    lane.counts = {}
    lanes[route] = lane
  end
  return lane
end

-- Read a job: its head by number, its run in `run`. Nil if there is none. `whole` also reads the payload. `live` is its entry in
-- `runs`, if the caller has it already.
local function load(id, whole, live)
  local key = K .. 'j' .. id
  local value = whole and redis.call('GET', key) or redis.call('GETRANGE', key, '0', PREFIX)
  if not value or value == '' then return nil end
  -- Named here so that the table is made in its final size.
  local job = { id = id, key = key, body = 0, lane = 0, text = 0, run = 0, payload = false, assigned = false, struct.unpack(HEAD, value) }
  local from, run_size = job[HEAD_FIELDS + 1], job[RUN_SIZE]
  local zero = string.find(value, '\0', from, true)
  if not zero then
    value = redis.call('GET', key)
    zero = string.find(value, '\0', from, true)
  end
  local body = zero + job[TERMS_SIZE] -- head, route and terms end here
  if body > #value then value = redis.call('GETRANGE', key, '0', body - 1) end
  job.body = body
  job.lane = lane_of(string.sub(value, from, zero - 1))
  job.text = string.sub(value, from, body)
  if whole then job.payload = string.sub(value, body + 1, #value - run_size) end
  if run_size > 0 then
    job.run = { NO_TOKEN, struct.unpack(ENDED, whole and string.sub(value, -run_size) or redis.call('GETRANGE', key, -run_size, -1)) }
  else
    job.run = { NO_TOKEN, 0, 0, 0, 0, '', '' }
  end
  if job[STATE] == QUEUED then
    live = live or redis.call('HGET', K .. ':runs', id)
    if live then
      local run, before, route, _ = job.run, 0, '', 0
      run[TOKEN], run[PID], run[STARTED], job[UPDATED], job[REASON], job[FLAGS], before, _, _, _, _, _, _, _, route, run[WORKER], run[NODE] =
        struct.unpack(LIVE, live)
      job[STATE], job[ATTEMPT] = RUNNING, before + 1
      if string.find(route, ';', 1, true) then job.assigned = redis.call('HGET', K .. ':assigned', id) end
    end
  end
  return job
end

-- A job as it is told: head, route, terms, run, and behind it the seconds and the name of its tier.
local function meta_of(job)
  local run, run_size = '', job[RUN_SIZE]
  if job.run[STARTED] > 0 or job.run[FINISHED] > 0 then run = struct.pack(RUN, unpack(job.run, 1, NODE)) .. (job.assigned or '') end
  job[RUN_SIZE] = #run
  local meta = struct.pack(HEAD, unpack(job, 1, HEAD_FIELDS)) .. job.text .. run
  job[RUN_SIZE] = run_size
  return meta
end

-- Write the run of a running job.
local function save_run(job)
  local run, route = job.run, job.lane.route
  if job.assigned and not job.lane.group then route = route .. ';' end -- so that the end of the run knows of it
  local live = struct.pack(LIVE, run[TOKEN], run[PID], run[STARTED], job[UPDATED], job[REASON], job[FLAGS], job[ATTEMPT] - 1, job[CRASHES],
    job[LOSSES], 0, job[DUE], job[RUN_SIZE], job[POS], job[KEEP], route, run[WORKER], run[NODE])
  redis.call('HSET', K .. ':runs', job.id, live)
end

-- Write a job that does not run. In place but for its run, which is at the end: the payload is not touched.
local function save(job)
  local before, run = job[RUN_SIZE], ''
  if job.run[STARTED] > 0 or job.run[FINISHED] > 0 then run = struct.pack(ENDED, unpack(job.run, PID, NODE)) end
  job[RUN_SIZE] = #run
  local head = struct.pack(HEAD, unpack(job, 1, HEAD_FIELDS))
  if before == 0 or before == #run then
    redis.call('SETRANGE', job.key, '0', head)
    if before > 0 then
      redis.call('SETRANGE', job.key, redis.call('STRLEN', job.key) - before, run)
    elseif run ~= '' then
      redis.call('APPEND', job.key, run)
    end
  else
    redis.call('SET', job.key, head .. job.text .. redis.call('GETRANGE', job.key, job.body, -before - 1) .. run)
  end
end

-- Keep the first job of a lane (or the first lane of a line) where the level above finds it; whether it changed.
local function lift(own, heads, name)
  local first = redis.call('ZRANGE', own, 0, 0, 'WITHSCORES')
  local old = redis.call('HGET', K .. ':tops', name)
  local new = first[1] and string.sub(first[1], 1, 8) .. name
  local top = new and first[2] .. ' ' .. new
  if old == (top or false) then return false end
  if old then redis.call('ZREM', heads, string.sub(old, string.find(old, ' ', 1, true) + 1)) end
  if new then
    redis.call('ZADD', heads, first[2], new)
    redis.call('HSET', K .. ':tops', name, top)
  else
    redis.call('HDEL', K .. ':tops', name)
  end
  return true
end
