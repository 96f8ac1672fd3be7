--[[
gandiva_gpus.lua - the nodes and GPUs a job asks for, in all of Slurm's forms, checked against what there is.

Loaded by gandiva_request.lua from the directory it lies in.
]]

local words = dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "gandiva_words.lua")
local refuse, split, shown, number_of = words.refuse, words.split, words.shown, words.number_of
local whole_number, is_name, sorted_keys = words.whole_number, words.is_name, words.sorted_keys

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

--- Nodes of the job: asked for, or what its tasks and those of a node come to; and to how many it may grow, nil
--- where it may not: an elastic job of one node to two (ADR 0066).
local function nodes_asked(desc, elastic)
    local least, most = number_of(desc.min_nodes), number_of(desc.max_nodes)
    if least and most and most > least then
        if elastic ~= "" and least == 1 and most == 2 then return 1, 2 end
        local cure = "ask for --nodes=" .. least
        if elastic ~= "" then
            cure = cure .. ", or for --nodes=1-2: an elastic job grows from one node to two"
        elseif least == 1 and most == 2 then
            cure = cure .. ", or add --gandiva-elastic=1-N, N the most GPUs that it may grow to"
        end
        refuse("--nodes: %d-%d asked, a Gandiva job has a fixed number; next: %s", least, most, cure)
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

--- An elastic job is given another number of GPUs before it is started anew, of one node or of two, where --gres
--- asked for them. Slurm changes no other form.
local function check_elastic(desc, options, total, flag)
    local low, high = options.elastic:match("^(%d+)-(%d+)$")
    if not low then return end
    if total < tonumber(low) or total > tonumber(high) then
        refuse("--gandiva-elastic: %s leaves out the number %s asks for, %d; next: widen it",
               options.elastic, flag, total)
    elseif options.nodes > 1 then
        refuse("--gandiva-elastic: a job of %d nodes keeps its size; next: leave it out, or ask for --nodes=1",
               options.nodes)
    end
    if number_of(desc.ntasks_per_node) then
        refuse("--gandiva-elastic: --ntasks-per-node cannot change with the GPUs; next: write --ntasks")
    end
    for _, form in ipairs(forms_of(desc, 1, 1)) do
        if form[1] ~= "--gres" and gpus_in(form[2], form[1]) then flag = form[1] end
    end
    if flag ~= "--gres" then
        refuse("--gandiva-elastic: %s asks for the GPUs, and Slurm changes their number only where --gres does; "
               .. "next: write --gres=gpu:%d", flag, total)
    end
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
    check_elastic(desc, options, total, flag)
    options.gpus, options.type = total, kind
end

--- Several nodes: no more than there are, and not as close together as one.
local function check_nodes(options, most)
    local nodes = options.max_nodes or options.nodes
    if most and nodes > most then
        refuse("--nodes: %d nodes asked, the partition has %d; next: ask for at most %d", nodes, most, most)
    elseif nodes > 1 and options.cell ~= "any" then
        refuse("--gandiva-cell: %s asked for a job of %d nodes; next: leave it out, or ask for --nodes=1",
               options.cell, nodes)
    end
end

return {
    nodes_asked = nodes_asked, tasks_of_node = tasks_of_node, check_nodes = check_nodes, check_gpus = check_gpus,
}
