-- The keyspace, the bytes of a job, and what every function of the library uses. The first of the sources that are
-- concatenated into the library (calls.py names their order): what is `local` here is visible in all that follow.
--
-- Every function is called as  FCALL windlass_VERSION_NAME 1 K now argument …
--   K    the prefix with its hash tag: 'wl{0}'. All keys that a call uses begin with it, so they share a slot.
--   now  microseconds; 0 = take the server's clock (another value only in tests and simulations)
-- In the heads of the functions, args → begins at args[2], behind `now`.
--
-- <id> is a job's key: the sixteen bytes of its id, then the name of its tenant unless that is 'default'. So the same id
-- in two tenants is two jobs. Bare ids are used only where the tenant is known: for jobs that wait for each other.
--
--   Kj<id>                  string  the job: head, lane, terms, run, payload (below)
--   Kr<id>                  string  its result: content type, a zero byte, data
--   Ke<id>                  list    its errors, oldest first
--   Ko<id>                  list    the newest of its output, oldest first: each with CHUNK_HEAD below, then its bytes
--   Ki<id>                  list    messages for its current or next run, oldest first: each with MESSAGE_HEAD below, then
--                                   its bytes; the first is the last that the run has taken (number 0 = none), without
--                                   its bytes
--   Kh<id>                  string  how its result is kept, if the result has a clock of its own (TIMED): HOLD below
--   Kf<id>                  string  the files that came with it, opaque here
--   Kg<id>                  hash    the files that a run has left: name -> bytes
--   Kd<id>                  hash    the results of its steps: name -> time of the end ('>I8'), number among them ('>I'), bytes
--   Kn<id>                  string  how often callers have edited it ('>I'), and its annotations, opaque here; absent = never
--   K:unique                hash    identity -> id of the last unique job that was added under it, as long as there is that
--                                   job
--   K:identities            hash    id of such a job -> its identity
--   Ka<id>                  string  ids of the jobs that a blocked job still waits for, one after the other
--   Kc<id>                  set     ids of the jobs that wait for it; they are of its tenant
--   Kt<id>                  string  the job that is to follow it, opaque here
--   Kk<id>                  string  its result, read already, while the job that follows still needs it
--   K:completed             zset    completed parents: followed jobs that ended or vanished, until they are processed:
--                                   member = bare id .. tenant, score = number of the end * 8 + state; Kc and Kt of such
--                                   a job outlive it
--   K:completions           int     the last number given to an end
--   K:blocked:<tenant queue>  zset  blocked jobs of a tenant queue by place
--   K:seq                   int     the last arrival sequence given out
--   K:pos                   hash    tenant queue -> the last place given out in it
--   K:tenant_queues         zset    tenant queues that hold jobs, by name
--   K:tenants               set     tenants that hold jobs
--   K:ready:<lane>          zset    queued jobs of a lane: score = priority, member = sequence (8 bytes) .. id
--   K:heads:<tenant queue>  zset    plain lanes of a tenant queue that have queued jobs, each with the score and sequence of
--                                   its first job: member = sequence .. plain lane
--   K:heads:<queue>         zset    the same for the tenant queues of a queue: member = sequence .. tenant queue
--   K:tops                  hash    lane, plain lane or tenant queue -> its score and member in the heads, to find it again
--   K:due                   zset    scheduled jobs by due time
--   K:stale                 zset    jobs never started, by the time they expire
--   K:owner_timeouts        zset    pending jobs with an owner clock, by the time they are abandoned
--   K:runs                  hash    id -> the current run of a running job: LIVE below
--   K:leases                zset    running jobs by the end of their lease
--   K:gone                  zset    finished jobs by the time they are dropped (absent = kept without limit); a job whose
--                                   result has a clock of its own, first by that clock
--   K:log:<tenant queue>:<kind>:<chunk>  hash  place in the chunk (a byte) -> id, for listings; kind = pending, or a finished
--                                   state; 64 places a chunk, so that it stays a compact listpack
--   K:chunks:<tenant queue> zset    chunks of a tenant queue that hold jobs
--   K:counts:<tenant>       hash    queue,task,state -> number of jobs
--   K:outcomes:<tenant>     hash    queue,task,outcome -> number of runs that ended so; outlives the jobs
--   K:outcomes              hash    tenants that have outcomes; '' -> number of fields of all of them
--   K:progress              hash    id -> the progress that a job last reported
--   K:held                  hash    worker -> number of jobs it runs
--   K:claim:<worker>,<nonce>,<queue>  string  keys of the jobs that a claim took from that queue on, each after its
--                                   length (expires by itself)
--   K:parked_claims:<queue> zset    nonces of claims that found nothing there and wait, by the time until which they wait
--   K:parked_claim:<nonce>  string  such a claim, PARKED_CLAIM below, until it is sent again or granted (expires by itself)
--   K:awaited               set     ids whose end a caller waits for (expires by itself)
--   K:workers               zset    workers by the time at which they count as dead  (first partition only)
--   K:worker:<id>           hash    a worker's record  (first partition only)
--   K:clock                 string  the latest time of the store and what the host's clock showed then: CLOCK below
--   K:watermarks            hash    journal -> the sequence up to which it has been drained into this partition
--   K:replica_probe         string  written before replicas are asked how far they are
--   K:records:<kind>        hash    name -> a record that is not a job  (first partition only)
--   K:upload:<tenant>:<sha> string  an uploaded file, by its SHA-256  (first partition only)
--   K:uploads:<tenant>      zset    SHA-256 of the files uploaded -> when they expire  (first partition only)
--   K:upload_sizes:<tenant> hash    SHA-256 -> bytes; '' -> bytes of all  (first partition only)
--   K:audit                 int     the number of the last line of the audit log  (first partition only)
--   K:audit_lines           hash    number -> time (8 bytes), tenant, a zero byte, line  (first partition only)
--   K:audit:<tenant>        zset    numbers of a tenant's lines; '-' = of operations on all tenants at once  (likewise)
--   K:audit_all             zset    numbers of all lines  (first partition only)
--   {PREFIX:partitions}:layout  string  the number of the layout described here; in no partition
--
-- A tenant queue is one tenant's queue: 'tenant,queue'. A lane is one task in it, 'tenant,queue,task', and for jobs with
-- limit keys a semicolon and those. The part before the semicolon is its plain lane: a lane without limit keys is its own.
-- The comma sorts before every character of a name, so tenant queues sort by tenant, then queue. The keys of flow control
-- are in flow.lua.
--
-- A job is one string, so that a waiting job is one key and one member:
--   head     68 bytes: HEAD below; it begins with 1, or with UNIQUE
--   lane     up to a zero byte
--   terms    its options, opaque here
--   payload  opaque here
--   run      how its last run ended: ENDED below; absent before the end of the first run
-- A claim does not change it: a job that is in `runs` is running, though its head says queued.
--
-- Redis prints a number given to redis.call with all its digits, which costs as much as the command: what is used for
-- every job is made a string once (`stamp`).

local HEAD = '>BBBBIBBI8I8HIiI8I8I8d'
local STATE, REASON, FLAGS, ATTEMPT, CRASHES, LOSSES, UPDATED, DUE, RUN_SIZE = 2, 3, 4, 5, 6, 7, 8, 9, 10
local TERMS_SIZE, PRIORITY, SEQ, POS, KEEP, HEAD_FIELDS = 11, 12, 13, 14, 16, 16 -- 15 is the creation

local KIND, CREATED = 1, 15
local UNIQUE = 2 -- the kind of a job that has, or had, an entry in K:unique

-- A run as it is answered and handled here, as it is stored while it lasts, and as it is stored afterwards.
local RUN = '>c8II8I8Hss'
local TOKEN, PID, STARTED, FINISHED, CODE, WORKER, NODE = 1, 2, 3, 4, 5, 6, 7
-- While it lasts: token, pid, start, change, reason; what the head said at the claim (flags, attempts before, crashes,
-- losses, change, due time, size of the last run; place; keep), so that a success need not read it; lane, worker, node.
local LIVE = '>c8II8I8BBIBBI8I8HI8dsss'
local ENDED = '>II8I8Hss' -- a run without its token
local NO_TOKEN = '\0\0\0\0\0\0\0\0'

-- A parked claim: lease (us), tenant ('-' = all), worker, node, its tasks with a comma before and after each ('' = any),
-- its queues likewise.
local PARKED_CLAIM = '>I8sssss'

local READ_FIRST = '511' -- the last byte of the first read: nearly always all but the payload

local BLOCKED, SCHEDULED, QUEUED, RUNNING, SUCCEEDED, CANCELLED, GONE = 0, 1, 2, 3, 4, 6, 7 -- as in layout.py; 5 is failed
local PENDING = 3 -- all states up to this share one log: a claim need not change it
local DELETED, BY_HAND = 14, 21 -- the only reasons that the library looks at

-- Flags. FOLLOWED: another job waits for it or is to follow it, or did; EXTRAS: it has files, steps, output or messages, or
-- had, or was edited.
local STALE, RESULT, ERRORS, PROGRESS, ONCE, NONE, FOLLOWED, EXTRAS = 1, 2, 4, 8, 16, 32, 64, 128
local TIMED = 48 -- both ONCE and NONE: the result is dropped before its record; the rest is in HOLD
local HOLD = '>Bd' -- 1 if it may be read once, else 0; seconds for which it is kept

-- A piece of output: number, bytes before it, attempt, time, stream. NO_STREAM: no output, but the numbers go on from it.
local CHUNK_HEAD = '>I8I8II8B'
local CHUNK_HEAD_SIZE, NO_STREAM = 29, 255
local MOST_OUTPUT, MOST_PIECES = 2097152, 16384

-- A message: number, bytes sent up to its end.
local MESSAGE_HEAD = '>I8I8'
local MOST_INPUT, MOST_MESSAGES, MOST_COLLECTED = 262144, 1000, 4194304

-- K:clock.
local CLOCK = '>I8I8'
local SECOND, LONGEST_GAP = 1000000, 10000000

local ID_SIZE = 16
local DEFAULT_TENANT = 'default'
local CHUNK = 64 -- places
local MOST_ARGUMENTS = 4000 -- of one redis.call; Lua's stack has room for twice as many

-- The state of one call. `begin` sets it, so that nothing of a call that failed is left for the next.

local K, now, is_server_time
local lanes = {} -- name -> lane: see lane_of
local modes = {} -- queue -> its letters in K:flow, false = none
local added, removed = {}, {} -- time index -> score, id, … and id, …
local held, ended, deleted_keys, without_progress, emptied = {}, {}, {}, {}, {}
local drop_times = {} -- seconds -> when a job is dropped that ends now

-- Flow control: flow.lua.
local flow = {}

-- What stays from call to call: K -> `latest`, the latest time of the store; `host`, what its host's clock showed then; and
-- `noted`, what that showed when both were last written to K:clock.
local clocks = {}

-- An empty table: this one, if it is. To make and sweep up a table costs as much as a command.
local function cleared(list) return next(list) == nil and list or {} end

-- The store's time when its host's clock shows this: the same, except that it never goes back. Were the clock set back by
-- an hour, all that waits for a time would wait for an hour more. So the store's time goes on from the latest that it was,
-- a tenth slower than the host's until that has caught up. It is noted every second, for the next server.
local function store_time(host, may_write)
  local clock = clocks[K]
  if not clock then
    clock = { latest = 0, host = 0, noted = 0 }
    clocks[K] = clock
  end
  local must_note = math.abs(host - clock.noted) >= SECOND
  if must_note then
    local noted = redis.call('GET', K .. ':clock')
    local latest, host_then = 0, 0
    if noted then latest, host_then = struct.unpack(CLOCK, noted) end
    if latest > clock.latest or not noted then clock.latest, clock.host = latest, host_then end
  end
  local passed = host - clock.host
  clock.latest = math.max(host, clock.latest + math.min(math.floor(math.max(passed, 0) * 0.9), LONGEST_GAP))
  clock.host = host
  if must_note and may_write then
    redis.call('SET', K .. ':clock', struct.pack(CLOCK, clock.latest, host))
    clock.noted = host
  end
  if passed <= -SECOND then redis.log(redis.LOG_WARNING, 'windlass: the clock was set back by ' .. -passed / SECOND .. ' s') end
  return clock.latest
end

local function begin(prefix, time, may_write)
  local host = tonumber(time)
  is_server_time = host == 0
  if is_server_time then
    local clock = redis.call('TIME')
    host = clock[1] * 1000000 + clock[2]
  end
  K = prefix
  now = store_time(host, may_write)
  lanes, modes, drop_times = cleared(lanes), cleared(modes), cleared(drop_times)
  added, removed, held, ended = cleared(added), cleared(removed), cleared(held), cleared(ended)
  deleted_keys, without_progress, emptied = cleared(deleted_keys), cleared(without_progress), cleared(emptied)
  flow.begin()
end

-- Flags of registered functions. A function without flags is refused while the server is out of memory.
local READS = { 'no-writes' }
local FREES_MEMORY = { 'allow-oom' } -- or uses little, and must not stop when memory has run out
local STORES = {}

-- Make a function callable; it gets the arguments of the call, of which the first is `now`.
local function register(name, flags, run)
  redis.register_function({
    function_name = 'windlass_' .. VERSION .. '_' .. name,
    flags = flags,
    callback = function(keys, args)
      begin(keys[1], args[1], flags ~= READS)
      return run(args)
    end,
  })
end

-- Tables and strings

local function push(to, a, b)
  local n = #to
  to[n + 1] = a
  if b then to[n + 2] = b end
end

-- The table under a name, made if it is missing.
local function in_(tables, name)
  local found = tables[name]
  if not found then
    found = {}
    tables[name] = found
  end
  return found
end

local function key_of(id, tenant) return tenant == DEFAULT_TENANT and id or id .. tenant end
local function id_of(key) return string.sub(key, 1, ID_SIZE) end
local function member(seq, id) return struct.pack('>I8', seq) .. id end
local function stamp(time) return string.format('%.0f', time) end

-- A node with what a worker says of what ran there (behind \31), or of what that uses (behind \30), instead of what it said of
-- that before.
local function placed(node, said)
  local place, used = string.match(node, '^([^\30]*)(.*)$')
  if string.byte(said) ~= 30 then place = string.match(place, '^[^\31]*') end
  return place .. said .. (string.find(said, '\30', 1, true) and '' or used)
end

-- Publish a message; how many connections it reached.
local function publish(topic, message)
  return redis.call('PUBLISH', string.match(K, '^(.-){') .. '/' .. topic, message or '')
end

-- Call a command with any number of words behind its key.
local function send(command, key, words)
  for from = 1, #words, MOST_ARGUMENTS do
    redis.call(command, key, unpack(words, from, math.min(from + MOST_ARGUMENTS - 1, #words)))
  end
end

-- A lane by its name, taken apart, with what a call gathers for it until `flush`: `counts` (state -> change), and if needed
-- `into`, `out`, `ready`, `unready`. `plain` is the name of its plain lane.
local function lane_of(name)
  local lane = lanes[name]
  if not lane then
    local tenant, queue, task = string.match(name, '^([^,]*),([^,]*),(.*)$')
    -- All fields are named here, so that the table has its final size at once.
    lane = {
      name = name, plain = name, tenant = tenant, queue = queue, task = task, tenant_queue = tenant .. ',' .. queue,
      limit_keys = false, buckets = false, counts = {}, into = false, out = false, ready = false, unready = false,
    }
    local semicolon = string.find(task, ';', 1, true)
    if semicolon then
      lane.task, lane.limit_keys = string.sub(task, 1, semicolon - 1), string.sub(task, semicolon + 1)
      lane.plain = lane.tenant_queue .. ',' .. lane.task
    end
    lanes[name] = lane
  end
  return lane
end

-- The letters of a queue in K:flow and those of every queue; false = nothing bounds its jobs.
local function mode_of(queue)
  local mode = modes[queue]
  if mode == nil then
    local found = redis.call('HMGET', K .. ':flow', queue, '*')
    mode = (found[1] or found[2]) and (found[1] or '') .. (found[2] or '') or false
    modes[queue] = mode
  end
  return mode
end
