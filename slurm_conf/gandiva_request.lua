--[[
gandiva_request.lua - what a job asks of Gandiva: read from its description, checked, written as a record.

Loaded by gandiva_job_submit.lua from the directory it lies in. Nothing here changes the job. A request
that cannot be met is refused by refuse: error() with a sentence for the user.
]]

local NO_VAL, NO_VAL16, INFINITE = 4294967294, 65534, 4294967295
--- Unset numbers in a job's description, whatever their width.
local UNSET = {[NO_VAL] = true, [NO_VAL16] = true, [INFINITE] = true}
--- What Slurm puts before our options' names; --gandiva itself has nothing behind it.
local OPTION = "_SLURM_SPANK_OPTION_gandiva_gandiva"
--- How a record begins in AdminComment.
local MARK = "gandiva:{"

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
    local words = set_of {...}
    return function(text) return words[text] == true end
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
}

local function shown(text)
    return (text:sub(1, 40):gsub("[^ -~]", "?"))
end

local function json_text(text)
    local function escape(char) return string.format("\\u%04x", char:byte()) end
    return '"' .. text:gsub('[%c"\\\127-\255]', escape) .. '"'
end

--- The options as sbatch, salloc or srun sent them; the job's own environment is not asked, for it
--- holds the options of the job around it when a job is submitted from inside one.
local function sent_options(desc)
    local sent = {}
    for i = 0, (tonumber(desc.spank_job_env_size) or 0) - 1 do
        local name, value = tostring(desc.spank_job_env[i]):match("^(" .. OPTION .. "[%w_]*)=(.*)$")
        if name then sent[name] = value end
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

--- GPUs and their type in one of Slurm's request strings ("gres:gpu:v100:2", "gres/gpu=2"); nil when none.
local function gpus_in(text, flag)
    local count, kind
    for _, item in ipairs(split(text or "")) do
        local rest = item:gsub("^gres[:/]", ""):match("^gpu(.*)$")
        if rest and (rest == "" or rest:match("^[:=]")) then
            local word, number = rest:match("^:([^:=]+)[:=](%d+)$")
            number = number or rest:match("^[:=](%d+)$") or (rest == "" and "1")
            if not number then word = rest:match("^:([^:=]+)$") end
            number = number or (word and "1")
            if not (number and whole_number(number, 0, 99999)) or (word and not is_name(word)) then
                refuse("%s: got \"%s\", takes gpu:N or gpu:TYPE:N", flag, shown(item))
            end
            if count then refuse("%s: two kinds of GPU in one job; next: ask for one kind", flag) end
            count, kind = tonumber(number), word or ""
        end
    end
    return count, kind
end

--- True for a number that somebody gave.
local function is_set(value)
    return tonumber(value) ~= nil and not UNSET[tonumber(value)]
end

local function number_of(value)
    value = tonumber(value)
    return is_set(value) and value > 0 and value or nil
end

--- Nodes of the job: asked for, or what its tasks and those of a node come to.
local function nodes_asked(desc)
    local least, most = number_of(desc.min_nodes), number_of(desc.max_nodes)
    if least and most and most > least then
        refuse("--nodes: %d-%d asked, a Gandiva job has a fixed number; next: ask for --nodes=%d",
               least, most, least)
    end
    local tasks, per_node = number_of(desc.num_tasks), number_of(desc.ntasks_per_node)
    return least or tasks and per_node and math.ceil(tasks / per_node) or 1
end

--- Tasks on each node; nil when nobody said, or they cannot be the same number on each.
local function tasks_of_node(desc, nodes)
    local tasks, per_node = number_of(desc.num_tasks), number_of(desc.ntasks_per_node)
    if nodes == 1 then return tasks or per_node end
    tasks = tasks or per_node and per_node * nodes
    return tasks and tasks % nodes == 0 and tasks / nodes or nil
end

--- Every way to ask for GPUs: the flag, Slurm's text of it, and how often its number counts on a node.
local function forms_of(desc, nodes, tasks)
    local forms = {
        {"--gpus", desc.tres_per_job, 1 / nodes},
        {"--gres", desc.tres_per_node, 1},
        {"--gpus-per-socket", desc.tres_per_socket, number_of(desc.sockets_per_node) or 1},
        {"--gpus-per-task", desc.tres_per_task, tasks},
    }
    -- over several nodes the whole job's number comes last: it can only agree with those of a node
    if nodes > 1 then table.insert(forms, table.remove(forms, 1)) end
    return forms
end

--- A gang over nodes has the same number of GPUs on each: Slurm splits 4 GPUs as 3 and 1 if it likes.
local function check_even(flag, count, times, nodes)
    local cure = "next: write --gpus-per-node"
    if flag == "--gpus" then
        refuse("--gpus: Slurm may split %d GPUs unevenly over %d nodes; %s", count, nodes, cure)
    elseif not times then
        refuse("%s: it must be known how many tasks each of the %d nodes has; %s", flag, nodes, cure)
    end
end

--- GPUs of the job on each of its nodes, their type, and the flag that asked for them.
local function gpus_asked(desc, nodes)
    local tasks, total, kind, flag = tasks_of_node(desc, nodes)
    for _, form in ipairs(forms_of(desc, nodes, tasks)) do
        local name, text, times = form[1], form[2], form[3]
        local count, word = gpus_in(text, name)
        if count and nodes > 1 and not total then check_even(name, count, times, nodes) end
        -- --gpus-per-task without a number of tasks: beside --gpus Slurm derives it, else it is 1.
        local asked = count and (times or not total) and count * (times or 1)
        if asked and total and asked ~= total then
            refuse("%s: asks for %d GPUs where %s asks for %d; next: make them agree",
                   name, asked * nodes, flag, total * nodes)
        end
        if word and word ~= "" and kind and kind ~= "" and word ~= kind then
            refuse("%s: asks for GPUs of type %s where %s asks for %s; next: make them agree",
                   name, word, flag, kind)
        end
        if count then
            total, flag = total or asked, flag or name
            kind = kind ~= "" and kind or word
        end
    end
    local per_gpu = number_of(desc.ntasks_per_tres)
    if per_gpu and nodes > 1 and not total then check_even("--ntasks-per-gpu", per_gpu, nil, nodes) end
    if not total and per_gpu and tasks then total, flag = math.ceil(tasks / per_gpu), "--ntasks-per-gpu" end
    return total or 0, kind or "", flag or "--gres"
end

local function check_types(nodes_gpus, kind, types, flag)
    local known = table.concat(sorted_keys(nodes_gpus), ", ")
    if kind ~= "" and not nodes_gpus[kind] then
        refuse("%s: no node has GPUs of type \"%s\"; next: ask for one of %s, or leave the type out",
               flag, shown(kind), known)
    end
    for _, name in ipairs(types ~= "" and split(types) or {}) do
        if not nodes_gpus[name] then
            refuse('--gandiva-gpu-types: no node has GPUs of type "%s"; next: choose from %s',
                   shown(name), known)
        end
    end
end

--- The most GPUs one node has, of the types the job may run on.
local function largest_node(nodes_gpus, kind, types)
    local most = 0
    local wanted = kind ~= "" and {kind} or types ~= "" and split(types) or sorted_keys(nodes_gpus)
    for _, name in ipairs(wanted) do most = math.max(most, nodes_gpus[name]) end
    return most
end

local function check_gpus(nodes_gpus, desc, options)
    local nodes = options.nodes
    local per_node, kind, flag = gpus_asked(desc, nodes)
    if per_node < 1 then
        refuse("--gres: no GPU asked; next: add --gres=gpu:N or --gpus=N, or choose another partition")
    end
    check_types(nodes_gpus, kind, options.types, flag)
    local most = largest_node(nodes_gpus, kind, options.types)
    if per_node > most then
        local of = kind ~= "" and " with " .. kind or options.types ~= "" and " with " .. options.types or ""
        refuse("%s: %d GPUs %sasked, the largest node of this partition%s has %d; next: ask for at most %d, "
               .. "or for more nodes (--nodes, --gpus-per-node)", flag, per_node,
               nodes > 1 and "on each node " or "", of, most, most)
    end
    local total = per_node * nodes
    local low, high = options.elastic:match("^(%d+)-(%d+)$")
    if low and (total < tonumber(low) or total > tonumber(high)) then
        refuse("--gandiva-elastic: %s leaves out the number %s asks for, %d; next: widen it",
               options.elastic, flag, total)
    end
    options.gpus, options.type = total, kind
end

local function check_vc(vcs, vc)
    if vc == "" or vcs[vc] then return end
    local known = table.concat(sorted_keys(vcs), ", ")
    refuse('--gandiva-vc: no virtual cluster "%s"; %s', shown(vc),
           known == "" and "none is configured here; next: leave it out" or "next: choose from " .. known)
end

local function is_named(text)
    return text ~= nil and text ~= ""
end

--- Several nodes: no more than there are, and not as close together as one.
local function check_nodes(options, most)
    local nodes = options.nodes
    if most and nodes > most then
        refuse("--nodes: %d nodes asked, the partition has %d; next: ask for at most %d", nodes, most, most)
    elseif nodes > 1 and options.cell ~= "any" then
        refuse("--gandiva-cell: %s asked for a job of %d nodes; next: leave it out, or ask for --nodes=1",
               options.cell, nodes)
    end
end

--- What Gandiva decides itself, or cannot do yet: refused now, for a held job would wait for ever.
local function check_shape(desc)
    if (tonumber(desc.het_job_offset) or NO_VAL) < NO_VAL then
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

--- Everything the job asks, checked; raises the refusal of what cannot be met. most_nodes: there are no more.
local function read(desc, sent, cfg, most_nodes)
    local options = read_options(sent)
    check_vc(cfg.vcs, options.vc)
    check_shape(desc)
    options.nodes = nodes_asked(desc)
    check_nodes(options, most_nodes)
    check_gpus(cfg.nodes_gpus, desc, options)
    options.tasks_of_node = tasks_of_node(desc, options.nodes)
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
    refuse = refuse, set_of = set_of, sorted_keys = sorted_keys, split = split, shown = shown,
    is_named = is_named, is_set = is_set, NO_VAL = NO_VAL, INFINITE = INFINITE, MARK = MARK,
    sent_options = sent_options, asks_for_gandiva = asks_for_gandiva,
    read = read, record_of = record_of, without_record = without_record,
}
