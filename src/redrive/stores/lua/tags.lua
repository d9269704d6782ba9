-- Labels that people gave an item. They stand in its record, and a set of each tag has all items that have it.
-- Inputs:    terms_of(record); tag_shares(id, record, note); tags_with(record, to add, to remove); label(id, record, tags)
-- Outputs:   its terms, where it has none those that say nothing; note(key, score, member) for each set that it is in because
--            of a tag; the tags it would have
-- Atomicity: reads and notes down; the script writes.
-- Keys:      tag:<tag> zset, number -> id

local function terms_of(m)
  widened(m)
  m[TERMS] = m[TERMS] or {'', 0, '', '', false, '', false, false, false, '', ''}
  return m[TERMS]
end

local function tag_shares(id, m, note)
  if tied(m, TAGGED) then
    for _, tag in ipairs(m[TERMS][TAGS]) do
      note(P .. 'tag:' .. tag, m[SEQ], id)
    end
  end
end

-- Without those to remove, with those to add, each once. In no order: who reads them puts them in theirs.
local function tags_with(m, add_these, remove_these)
  local tags, unwanted = {}, {}
  for _, tag in ipairs(remove_these) do
    unwanted[tag] = true
  end
  for _, list in ipairs({tied(m, TAGGED) and m[TERMS][TAGS] or {}, add_these}) do
    for _, tag in ipairs(list) do
      if not unwanted[tag] then
        unwanted[tag] = true
        tags[#tags + 1] = tag
      end
    end
  end
  return tags
end

local function label(id, m, tags)
  tag_shares(id, m, remove_share)
  local terms = terms_of(m)
  if #tags > 0 then
    terms[TAGS], m[TIES] = tags, bor(m[TIES], TAGGED)
  else
    terms[TAGS], m[TIES] = terms[DESCRIBED] and {} or nil, band(m[TIES], bit.bnot(TAGGED))
  end
  tag_shares(id, m, add)
end
