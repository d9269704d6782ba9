-- Ranks: a level as a number, or a level and a kind with a NUL between (rank_of in prelude.lua).
-- Inputs:    ranked(level, kind or nil); level_in(rank), kind_in(rank), also of a rank as a set has it
-- Outputs:   the rank; its level; its kind, empty for none
-- Atomicity: reads nothing.

local function ranked(level, kind)
  return kind and kind ~= '' and level .. '\0' .. kind or level
end

local function level_in(rank)
  return tonumber(string.match(rank, '^%d+'))
end

local function kind_in(rank)
  local at = string.find(rank, '\0', 1, true)
  return at and string.sub(rank, at + 1) or ''
end
