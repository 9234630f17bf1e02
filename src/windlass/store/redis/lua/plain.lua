-- Stands in for flow.lua in scripts that are for plain jobs alone, and do nothing when they meet others.

local made = {}

local function mode_of() return false end
local function flow() end

-- Whether the text of a run or a job, from some place on, speaks of a group.
local function is_beyond(text, from) return string.find(text, ';', from, true) end
