-- Keep a message for a job that has not ended.
-- ARGV[2..]  id, bytes
-- Output     what became of it: 'kept', 'full' or 'ended'
local id, data = ARGV[2], ARGV[3]
local job = load(id)
if not job or job[STATE] > RUNNING then return 'ended' end
local key = K .. 'i' .. id
local first, last = redis.call('LINDEX', key, '0'), redis.call('LINDEX', key, '-1')
local taken, before, n, finish = 0, 0, 0, 0
if first then
  taken, before = struct.unpack(MESSAGE_HEAD, first)
  n, finish = struct.unpack(MESSAGE_HEAD, last)
end
if n - taken >= MOST_MESSAGES or finish - before + #data > MOST_INPUT then return 'full' end
if not first then redis.call('RPUSH', key, struct.pack(MESSAGE_HEAD, 0, 0)) end
redis.call('RPUSH', key, struct.pack(MESSAGE_HEAD, n + 1, finish + #data) .. data)
if not has(job, EXTRAS) then
  mark(job, EXTRAS)
  if job[STATE] == RUNNING then save_run(job) else save(job) end
end
if job[STATE] == RUNNING then publish('order/' .. job.run[WORKER]) end
return 'kept'
