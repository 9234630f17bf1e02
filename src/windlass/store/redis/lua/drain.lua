-- Keep new jobs from a journal, unless they are not what follows.
-- ARGV[2..]  as for add.lua; then the journal, the mark that the jobs follow on, the mark that they lead to
-- Output     as for add.lua; or the mark of the journal, as a text, if it is another one: then nothing was done
local journal, since, upto = ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]
local found = redis.call('HGET', K .. ':marks', journal) or '0'
if found ~= since then return found end
local made = ARGV[4] == '0' and {} or include('add')
if made.err then return made end
if upto ~= since then redis.call('HSET', K .. ':marks', journal, upto) end
return made
