--[[
gandiva_request.lua - what a job asks of Gandiva: read from its description, checked, written as a record.

Loaded by gandiva_job_submit.lua from the directory it lies in. Nothing here changes the job. A request
that cannot be met is refused by refuse: error() with a sentence for the user.
]]

local directory = debug.getinfo(1, "S").source:match("^@(.*/)")
local words = dofile(directory .. "gandiva_words.lua")
local gpus = dofile(directory .. "gandiva_gpus.lua")
local refuse, set_of, split, shown = words.refuse, words.set_of, words.split, words.shown
local whole_number, is_name, is_named = words.whole_number, words.is_name, words.is_named

--- What Slurm puts before our options' names; --gandiva itself has nothing behind it.
local OPTION = "_SLURM_SPANK_OPTION_gandiva_gandiva"
--- The signal that sbatch was given itself, as the SPANK plugin hands it on.
local SIGNAL = "GANDIVA_SIGNAL"
--- How a record begins in AdminComment.
local MARK = "gandiva:{"

local function is_name_list(text)
    if #text > 255 then return false end
    for _, word in ipairs(split(text)) do
        if not is_name(word) then return false end
    end
    return true
end

local function is_elastic(text)
    local low, high = text:match("^(%d+)-(%d+)$")
    low = low and whole_number(low, 1, 99999)
    return low ~= nil and whole_number(high, low, 99999) ~= nil
end

local function between(low, high)
    return function(text) return whole_number(text, low, high) ~= nil end
end

local function one_of(...)
    local taken = set_of {...}
    return function(text) return taken[text] == true end
end

--- Signals that jobs catch.
local SIGNALS = set_of {"HUP", "INT", "USR1", "USR2", "TERM"}

local function is_checkpoint(text)
    if one_of("auto", "signal", "submitit", "self", "none")(text) then return true end
    local head, directory = text:match("^(self):([%w_./%%+,=@-]+)$")
    if not directory then head, directory = text:match("^(signal:%w+@%d+):([%w_./%%+,=@-]+)$") end
    if directory and #directory > 200 then return false end
    if head == "self" then return true end
    text = head or text
    local name, seconds = text:match("^signal:(%w+)$"), nil
    if not name then name, seconds = text:match("^signal:(%w+)@(%d%d?%d?%d?)$") end
    return SIGNALS[name] == true and (seconds == nil or whole_number(seconds, 1, 3600) ~= nil)
end

--- Every option: its key in the record, its default there, what it takes. The same as in the SPANK plugin.
local RULES = {
    {"tickets", 100, between(1, 1000), "a whole number from 1 to 1000"},
    {"priority", 50, between(0, 100), "a whole number from 0 to 100"},
    {"class", "guaranteed", one_of("guaranteed", "opportunistic"), "guaranteed or opportunistic"},
    {"vc", "", is_name, "a name of letters, digits, '_', '.' and '-'"},
    {"types", "", is_name_list, "GPU types separated by commas, as in v100,p100", flag = "gpu-types"},
    {"cell", "any", one_of("gpu", "switch", "socket", "node", "any"), "gpu, switch, socket, node or any"},
    {"elastic", "", is_elastic, "MIN-MAX, whole numbers with 1 <= MIN <= MAX, as in 2-8"},
    {"pack", "auto", one_of("auto", "never"), "auto or never"},
    {"migrate", "auto", one_of("auto", "never"), "auto or never"},
    {"hook", "auto", one_of("auto", "none"), "auto or none"},
    {"checkpoint", "auto", is_checkpoint, "auto, signal[:NAME[@SECONDS[:DIR]]], submitit, self[:DIR] or none"},
}

local function json_text(text)
    local function escape(char) return string.format("\\u%04x", char:byte()) end
    return '"' .. text:gsub('[%c"\\\127-\255]', escape) .. '"'
end

--- The options as sbatch, salloc or srun sent them, and a batch job's signal; the job's own environment is not
--- asked, for it holds the options of the job around it when a job is submitted from inside one.
local function sent_options(desc)
    local sent = {}
    for i = 0, (tonumber(desc.spank_job_env_size) or 0) - 1 do
        local name, value = tostring(desc.spank_job_env[i]):match("^([%w_]+)=(.*)$")
        if name and (name == SIGNAL or name:sub(1, #OPTION) == OPTION) then sent[name] = value end
    end
    return sent
end

--- True when --gandiva was given, or implied by another flag of ours.
local function asks_for_gandiva(sent)
    return sent[OPTION] ~= nil
end

local function read_options(sent)
    local flag = sent[OPTION]
    if flag and flag ~= "" and flag ~= "1" and flag ~= "(null)" then
        refuse('--gandiva: got "%s", takes 1 or 0 (from SBATCH_GANDIVA)', shown(flag))
    end
    local options = {}
    for _, rule in ipairs(RULES) do
        local key, default, is_good, takes = rule[1], rule[2], rule[3], rule[4]
        local name = rule.flag or key
        local value = sent[OPTION .. "_" .. name:gsub("%-", "_")]
        if value and not is_good(value) then
            refuse('--gandiva-%s: got "%s", takes %s', name, shown(value), takes)
        end
        options[key] = value or default
        if value and type(default) == "number" then options[key] = tonumber(value) end
    end
    return options
end

local function check_vc(vcs, vc)
    if vc == "" or vcs[vc] then return end
    local known = table.concat(words.sorted_keys(vcs), ", ")
    refuse('--gandiva-vc: no virtual cluster "%s"; %s', shown(vc),
           known == "" and "none is configured here; next: leave it out" or "next: choose from " .. known)
end

--- What Gandiva decides itself, or cannot do yet: refused now, for a held job would wait for ever.
local function check_shape(desc)
    if (tonumber(desc.het_job_offset) or words.NO_VAL) < words.NO_VAL then
        refuse("heterogeneous jobs are not taken; next: submit the parts as jobs of their own")
    end
    if is_named(desc.req_nodes) or is_named(desc.exc_nodes) then
        refuse("--nodelist, --exclude: Gandiva chooses the node; next: leave them out, or name a GPU type")
    end
    if is_named(desc.features) then
        refuse("--constraint: Gandiva chooses the node by its GPUs; next: leave it out, or name a GPU type")
    end
    if tonumber(desc.shared) == 0 then
        refuse("--exclusive: a Gandiva job shares its node; next: leave it out, or choose another partition")
    end
end

--- The one reservation the job is to run in: the controller places it on that one's nodes.
local function read_reservation(name)
    if is_name(name) then return name end
    refuse('--reservation: got "%s", takes one name; next: name one reservation', shown(name))
end

--- The value of --signal that counts among a script's #SBATCH lines, as sbatch reads them: several options on a
--- line, a comment behind them, quotes, the last one of several; no line behind the first command.
local function signal_line(script)
    local found, is_next = nil, false
    for line in (script .. "\n"):gmatch("([^\n]*)\n") do
        local options = line:match("^#SBATCH%s(.*)$")
        if not options and line:match("^%s*[^%s#]") then return found end
        for word in (options or ""):gsub("[\"']", ""):gmatch("%S+") do
            if word:sub(1, 1) == "#" then break end
            if is_next then found = word end
            is_next = word == "--signal"
            found = word:match("^%-%-signal=(.+)$") or found
        end
        is_next = false
    end
    return found
end

--- A batch job's own --signal=[B:]NAME[@SECONDS], in words: as sbatch was given it, else as its script has it. A
--- number, or a signal that is not known here: none.
local function signal_of(script, sent)
    local asked = script ~= "" and (sent[SIGNAL] or signal_line(script))
    if not asked then return nil end
    local flags, name, seconds = asked:match("^(%u*):(%w+)@?(%d*)$")
    if not name then name, seconds = asked:match("^(%w+)@?(%d*)$") end
    name = name and name:upper():gsub("^SIG", "")
    if not SIGNALS[name] then return nil end
    local grace = whole_number(seconds == "" and "60" or seconds, 1, 3600)
    return {to = flags and flags:find("B", 1, true) and "B:" or "", name = name, seconds = grace or 3600}
end

--- How the job itself saves, settled: as it was asked, or by its --signal and what its script says (auto). `signal` and
--- `submitit` are written with whom they go to (B: the batch shell), the signal and the seconds.
local function settle_checkpoint(desc, asked, sent)
    local script = tostring(desc.script or "")
    local own, is_submitit = signal_of(script, sent), script:find("SUBMITIT_EXECUTOR=slurm", 1, true) ~= nil
    -- Whether its function has a checkpoint() submitit's script does not say: one without would begin anew.
    if asked == "auto" and is_submitit then return asked end
    if asked == "auto" then
        local requeues = tonumber(desc.requeue) == 1 or script:find("scontrol%s+requeue") ~= nil
        if not own or not requeues then return asked end
        asked = "signal"
    end
    if asked == "submitit" then own = own or {to = "", name = "USR2", seconds = 90} end
    if asked == "submitit" then return string.format("submitit:%s@%d", own.name, own.seconds) end
    if asked:sub(1, 6) ~= "signal" then return asked end
    local name, seconds, files = asked:match("^signal:(%w+)@?(%d*)(.*)$")
    if not name and not own then
        refuse("--gandiva-checkpoint=signal: its script has no #SBATCH --signal; next: name the signal, as in "
               .. "signal:USR1@60")
    end
    seconds = tonumber(seconds) or own and own.seconds or 60
    return string.format("signal:%s%s@%d%s", own and own.to or "", name or own.name, seconds, files or "")
end

--- Everything the job asks, checked; raises the refusal of what cannot be met. most_nodes: there are no more.
local function read(desc, sent, cfg, most_nodes)
    local options = read_options(sent)
    check_vc(cfg.vcs, options.vc)
    check_shape(desc)
    options.checkpoint = settle_checkpoint(desc, options.checkpoint, sent)
    options.nodes, options.max_nodes = gpus.nodes_asked(desc, options.elastic)
    gpus.check_nodes(options, most_nodes)
    gpus.check_gpus(cfg.nodes_gpus, desc, options)
    options.tasks_of_node = gpus.tasks_of_node(desc, options.nodes)
    options.user_hold = tonumber(desc.priority) == 0
    options.reservation = is_named(desc.reservation) and read_reservation(desc.reservation) or nil
    return options
end

--- The record, as the last words of AdminComment.
local function record_of(options)
    local parts = {'"v":1'}
    for _, rule in ipairs(RULES) do
        local value = options[rule[1]]
        local text = type(value) == "number" and string.format("%d", value) or json_text(value)
        parts[#parts + 1] = '"' .. rule[1] .. '":' .. text
    end
    if options.reservation then
        parts[#parts + 1] = '"reservation":' .. json_text(options.reservation)
    end
    if options.max_nodes then parts[#parts + 1] = string.format('"max_nodes":%d', options.max_nodes) end
    parts[#parts + 1] = string.format('"gpus":%d,"nodes":%d,"type":%s,"user_hold":%s', options.gpus,
                                      options.nodes, json_text(options.type), tostring(options.user_hold))
    return MARK .. table.concat(parts, ",") .. "}"
end

--- The text without a record of ours: none is there unless somebody planted it.
local function without_record(text)
    local at = text and text:find(MARK, 1, true)
    return at and text:sub(1, at - 1):gsub("%s+$", "") or text
end

return {
    MARK = MARK, sent_options = sent_options, asks_for_gandiva = asks_for_gandiva,
    read = read, record_of = record_of, without_record = without_record,
}
