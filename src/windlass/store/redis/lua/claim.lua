-- Lease the first jobs that a worker may take, from queues in which nothing bounds them: see claiming.lua.
-- Output  0 if some queue is bounded, 2 if the claim is sent again: then nothing was taken
if last then return 2 end
local letters = redis.call('HMGET', K .. ':flow', '*', unpack(ARGV, first_queue))
for i = 1, #letters do
  if letters[i] then return 0 end
end
for i = first_queue, #ARGV do claim_in_order(ARGV[i]) end
if #ids == 0 and slots > 0 and stays > 0 then
  leave_wish(stays, { nonce = nonce, lease = lease, tenant = tenant, worker = worker, node = node }, { unpack(ARGV, 13, 12 + known) },
    { unpack(ARGV, first_queue) })
end
return finish(function()
  for _, lane in pairs(lanes) do flush_counts(lane) end
  flush_indexes()
end)
