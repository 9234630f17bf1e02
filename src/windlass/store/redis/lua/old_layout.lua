-- Whether jobs lie here as they did in the first layout, in which the tenant was no part of a job's key. The default tenant's keys are
-- the same in both.
-- Output  the name of a tenant whose jobs do, or nothing
for _, line in ipairs(redis.call('ZRANGE', K .. ':lines', 0, -1)) do
  local tenant = string.match(line, '^[^,]*')
  if tenant ~= DEFAULT_TENANT then
    local chunk = redis.call('ZRANGE', K .. ':chunks:' .. line, 0, 0)[1]
    for kind = PENDING, CANCELLED do
      local listed = chunk and redis.call('HVALS', log_key(line, kind, chunk)) or {}
      if listed[1] and #listed[1] == ID_SIZE then return tenant end
    end
  end
end
return false
