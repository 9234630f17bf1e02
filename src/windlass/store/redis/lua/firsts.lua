-- Stands in for reruns.lua in the script for plain jobs, which does nothing when it meets any but first runs that are kept.

local function is_for_others(front, back) return front.again or front.reason == DELETED or back.keep == 0 end

local function finish_other() end

local function write()
  for _, lane in pairs(lanes) do
    flush_listing(lane)
    flush_counts(lane)
  end
  flush_indexes()
end
