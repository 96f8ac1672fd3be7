--[[
gandiva_words.lua - reading words and numbers of a job's description, for the gandiva_*.lua beside it.
]]

local NO_VAL, NO_VAL16, INFINITE = 4294967294, 65534, 4294967295
--- Unset numbers in a job's description, whatever their width.
local UNSET = {[NO_VAL] = true, [NO_VAL16] = true, [INFINITE] = true}

--- A refusal of ours, told to the user; distinct from a mistake in these files.
local function refuse(format, ...)
    error({sentence = "gandiva: " .. string.format(format, ...)}, 0)
end

local function set_of(words)
    local set = {}
    for _, word in ipairs(words) do set[word] = true end
    return set
end

local function sorted_keys(map)
    local keys = {}
    for key in pairs(map) do keys[#keys + 1] = key end
    table.sort(keys)
    return keys
end

local function split(text)
    local words = {}
    for word in (text .. ","):gmatch("([^,]*),") do words[#words + 1] = word end
    return words
end

local function whole_number(text, low, high)
    local number = text:match("^%d%d?%d?%d?%d?$") and tonumber(text)
    return number and number >= low and number <= high and number or nil
end

local function is_name(text)
    return #text <= 64 and text:match("^[%w_.-]+$") ~= nil
end

local function shown(text)
    return (text:sub(1, 40):gsub("[^ -~]", "?"))
end

local function is_named(text)
    return text ~= nil and text ~= ""
end

--- True for a number that somebody gave.
local function is_set(value)
    return tonumber(value) ~= nil and not UNSET[tonumber(value)]
end

local function number_of(value)
    value = tonumber(value)
    return is_set(value) and value > 0 and value or nil
end

return {
    NO_VAL = NO_VAL, INFINITE = INFINITE, refuse = refuse, set_of = set_of, sorted_keys = sorted_keys,
    split = split, whole_number = whole_number, is_name = is_name, shown = shown, is_named = is_named,
    is_set = is_set, number_of = number_of,
}
