-- Look jobs up.
-- ARGV[2..]  '1' with payload or '0' without; id, …
-- Output     now, then the jobs that are there
local whole = ARGV[2] == '1'
local out = { stamp(now) }
for i = 3, #ARGV do
  local job = load(ARGV[i], whole)
  if job then answer(job, meta_of(job), out) end
end
return out
