-- The end of a job that has run before or is not kept, which succeed.lua meets among first runs.

local function is_for_others() return false end

local function finish_other(id, live, code, finished, ran, result, keep)
  local job = load(id, false, live)
  leave(job)
  job[STATE], job[REASON], job[UPDATED] = SUCCEEDED, 0, now
  job.run[CODE], job.run[FINISHED] = code, finished
  if ran ~= '' then job.run[NODE] = placed(job.run[NODE], ran) end
  if has(job, FOLLOWED) then ripen(id, job.lane.tenant, SUCCEEDED) end
  if keep == 0 then
    vanish(job, RUNNING)
  else
    job[FLAGS], keep = keep_result(id, result, forget_input(id, job[FLAGS]), keep)
    enter(job, drop_at(keep))
    relist(job, RUNNING)
    save(job)
  end
end

local function write() flush() end
