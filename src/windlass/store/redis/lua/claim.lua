-- Lease the first jobs that a worker may take, from queues in which nothing bounds them: see claiming.lua.
-- Output  0 if some queue is bounded: then nothing was taken
for _, letters in ipairs(redis.call('HMGET', K .. ':flow', '*', unpack(ARGV, 12 + known))) do
  if letters then return 0 end
end
for i = 12 + known, #ARGV do claim_in_order(ARGV[i]) end
if #ids == 0 and slots > 0 and stays > 0 then
  leave_wish(stays, { nonce = nonce, lease = lease, tenant = tenant, worker = worker, node = node }, { unpack(ARGV, 12, 11 + known) },
    { unpack(ARGV, 12 + known) })
end
return finish()
