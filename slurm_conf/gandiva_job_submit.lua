--[[
gandiva_job_submit.lua - Gandiva's part of job_submit.lua (Slurm 22.05 and later, Lua 5.1 and later).

At submission it decides whether a job is Gandiva's (--gandiva, or its partition), checks what it asks,
holds it and records its options behind "gandiva:" in AdminComment, after whatever other tools wrote
there. At an update it refuses an owner what only Gandiva may change. The site's own job_submit.lua loads
it by dofile and calls configure, submit and modify; job_submit.lua beside this file shows how.

configure takes: partitions, a list (a job with --gandiva and no partition gets its first); nodes_gpus, the
most GPUs one node of each type has; vcs, a list of virtual clusters; slurm_uid, SlurmUser's number when
slurmctld does not run as SlurmUser; admin_uids, a list of users with AdminLevel=Operator who may change
Gandiva jobs as root may.

Nothing here raises into slurmctld: Slurm accepts a job whose script failed, half edited and not held.
On an error of ours a Gandiva job is refused with a sentence and any other job passes.
]]

local M = {}

--- The other gandiva_*.lua lie beside this file, wherever the site put them.
local directory = debug.getinfo(1, "S").source:match("^@(.*/)")
local words = dofile(directory .. "gandiva_words.lua")
local request = dofile(directory .. "gandiva_request.lua")
local refuse, is_named, shown = words.refuse, words.is_named, words.shown

--- 2100-01-01 UTC. A job's begin time is the one thing that an owner may change, that the controller sees
--- while a job is held and that Slurm keeps: this one says "held by its owner", for Slurm shows our hold
--- and his alike.
local OWNER_HOLD = 4102444800
local TELL = "next: tell the administrator"

--- slurmctld runs this as SlurmUser, whom it obeys like root.
local function own_uid()
    local file = io.open("/proc/self/status")
    local uid = file and file:read("*a"):match("\nUid:%s+(%d+)")
    if file then file:close() end
    return tonumber(uid)
end

local cfg = {partitions = {}, nodes_gpus = {}, vcs = {}, slurm_uid = own_uid(), admin_uids = {}}
local cfg_error = "gandiva.configure has not been called"

--- The partitions the job may run in: named, or Slurm's default one.
local function partitions_of(desc, parts)
    if desc.partition and desc.partition ~= "" then return words.split(desc.partition) end
    for name, part in pairs(parts) do
        if tonumber(part.flag_default) == 1 or part.flag_default == true then return {name} end
    end
    return {}
end

--- The partitions asked for; a job that names none and has the flag gets the first of ours, so that
--- `sbatch --gandiva` alone does what its user means.
local function partitions_meant(desc, parts, sent)
    if not is_named(desc.partition) and request.asks_for_gandiva(sent) then
        local default = partitions_of(desc, parts)[1]
        return {cfg.partitions[default] and default or cfg.first_partition}
    end
    return partitions_of(desc, parts)
end

--- The nodes of the largest of these partitions; nil where Slurm does not tell.
local function largest(named, parts)
    local most
    for _, name in ipairs(named) do
        local nodes = parts[name] and tonumber(parts[name].total_nodes)
        if nodes and nodes > (most or 0) then most = nodes end
    end
    return most
end

--- True for a Gandiva job. A job with the flag outside our partitions, or half inside, is refused.
local function is_ours(desc, parts, sent)
    local named = partitions_meant(desc, parts, sent)
    local ours, other = 0, nil
    for _, name in ipairs(named) do
        if cfg.partitions[name] then ours = ours + 1 else other = other or name end
    end
    local list = table.concat(words.sorted_keys(cfg.partitions), ",")
    if other and ours > 0 then
        refuse("--partition: %s is Gandiva's only in part; next: name partitions of one kind (Gandiva's: %s)",
               shown(desc.partition), list)
    end
    if ours == 0 and request.asks_for_gandiva(sent) then
        refuse("--gandiva: partition %s is not Gandiva's; next: ask for --partition=%s, or leave the flag "
               .. "out", shown(other or "(none)"), list)
    end
    return ours > 0
end

-- ---------------------------------------------------------------- submission

--- Slurm leaves the restart count of a requeued job in the environment of the jobs it submits.
local function reset_restart_count(desc)
    if desc.environment and desc.environment["SLURM_RESTART_COUNT"] then
        desc.environment["SLURM_RESTART_COUNT"] = "0"
    end
end

--- Everything is checked before: only here is the job changed.
local function take(desc, options, partition)
    local before = request.without_record(desc.admin_comment)
    desc.admin_comment = (is_named(before) and before .. " " or "") .. request.record_of(options)
    desc.min_nodes, desc.max_nodes = options.nodes, options.nodes
    -- else Slurm spreads 4 tasks over 2 nodes as 3 and 1 (22.05.8)
    if options.nodes > 1 and options.tasks_of_node then desc.ntasks_per_node = options.tasks_of_node end
    if not is_named(desc.partition) then desc.partition = partition end
    if options.user_hold then desc.begin_time = OWNER_HOLD end
    pcall(reset_restart_count, desc)
    desc.priority = 0
end

local function submit(desc, parts)
    local sent = request.sent_options(desc)
    if cfg_error and request.asks_for_gandiva(sent) then refuse("job_submit.lua: %s; %s", cfg_error, TELL) end
    if is_ours(desc, parts, sent) then
        if cfg_error then refuse("job_submit.lua: %s; %s", cfg_error, TELL) end
        local named = partitions_meant(desc, parts, sent)
        take(desc, request.read(desc, sent, cfg, largest(named, parts)), named[1])
    elseif is_named(desc.admin_comment) and desc.admin_comment:find(request.MARK, 1, true) then
        desc.admin_comment = request.without_record(desc.admin_comment)
    end
end

--- True when the job is surely or probably Gandiva's: asked only after a mistake of ours.
local function looks_like_ours(desc, parts)
    local found, yes = pcall(function()
        return request.asks_for_gandiva(request.sent_options(desc))
            or cfg.partitions[partitions_of(desc, parts)[1]] == true
    end)
    return found and yes
end

--- slurm_job_submit of a site calls this; returns what that is to return.
function M.submit(desc, parts, _)
    local done, fault = pcall(submit, desc, parts)
    if done then return slurm.SUCCESS end
    if type(fault) == "table" and fault.sentence then
        slurm.log_user("%s", fault.sentence)
        return slurm.ERROR
    end
    slurm.log_error("gandiva: job_submit: %s", tostring(fault))
    if not looks_like_ours(desc, parts) then return slurm.SUCCESS end
    slurm.log_user("gandiva: job_submit failed on this job: %s; %s", tostring(fault), TELL)
    return slurm.ERROR
end

-- ---------------------------------------------------------------- updates

--- What an owner may not change of a Gandiva job: where it runs, what it holds, when Slurm starts it.
--- Nice is among them: Slurm computes the priority anew from it, and so releases a held job.
local TEXTS = {"tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task",
               "req_nodes", "exc_nodes", "partition", "features", "prefer", "reservation"}
local NUMBERS = {"nice", "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "sockets_per_node",
                 "shared"}

local function forbidden_change(desc)
    for _, name in ipairs(TEXTS) do
        if desc[name] ~= nil then return name end
    end
    for _, name in ipairs(NUMBERS) do
        if words.is_set(desc[name]) then return name end
    end
    return nil
end

local function is_trusted(uid)
    return uid == 0 or uid == cfg.slurm_uid or cfg.admin_uids[uid] == true
end

local function is_pending(rec)
    return (tonumber(rec.job_state) or 0) % 256 == 0
end

--- Returns why the change is refused, nil when it may pass.
local function modify(desc, rec)
    local name = forbidden_change(desc)
    if name then return name end
    local priority = tonumber(desc.priority)
    if priority == 0 and is_pending(rec) then
        desc.begin_time = OWNER_HOLD
    elseif priority == words.INFINITE and rec.admin_comment:find('"user_hold":true}', 1, true) then
        desc.priority, desc.begin_time = 0, os.time()
    elseif priority and priority ~= 0 and priority ~= words.NO_VAL then
        return "priority"
    end
    return nil
end

--- slurm_job_modify of a site calls this. Slurm shows the owner no text of ours, so the code is all he sees.
function M.modify(desc, rec, _, uid)
    local known, is_gandiva = pcall(function()
        return rec.admin_comment ~= nil and rec.admin_comment:find(request.MARK, 1, true) ~= nil
    end)
    if not known or not is_gandiva or is_trusted(tonumber(uid)) then return slurm.SUCCESS end
    local done, why = pcall(modify, desc, rec)
    if done and not why then return slurm.SUCCESS end
    slurm.log_info("gandiva: update of job %s by uid %s refused: %s",
                   tostring(rec.job_id), tostring(uid), tostring(why))
    return slurm.ESLURM_ACCESS_DENIED
end

-- ---------------------------------------------------------------- configuration

local function check_configuration(given)
    local known = words.set_of {"partitions", "nodes_gpus", "vcs", "slurm_uid", "admin_uids"}
    for key in pairs(given) do
        if not known[key] then
            return string.format("configure: unknown key \"%s\" (known: %s)", tostring(key),
                                 table.concat(words.sorted_keys(known), ", "))
        end
    end
    if type(given.partitions) ~= "table" or #given.partitions == 0 then
        return 'configure: partitions must be a list of names, as in {"gandiva"}'
    end
    if type(given.nodes_gpus) ~= "table" or next(given.nodes_gpus) == nil then
        return "configure: nodes_gpus must name the most GPUs of a node by type, as in {v100 = 4}"
    end
    for kind, count in pairs(given.nodes_gpus) do
        if type(count) ~= "number" or count < 1 or count % 1 ~= 0 then
            return string.format("configure: nodes_gpus.%s must be a whole number from 1", tostring(kind))
        end
    end
    return nil
end

--- Take the site's settings. A wrong one is logged, and Gandiva jobs are refused with it until it is mended.
function M.configure(given)
    local done, fault = pcall(check_configuration, given)
    cfg_error = not done and tostring(fault) or fault
    if type(given) ~= "table" then given = {} end
    if cfg_error then slurm.log_error("gandiva: job_submit.lua: %s", cfg_error) end
    local function list_of(key) return words.set_of(type(given[key]) == "table" and given[key] or {}) end
    cfg = {
        partitions = list_of("partitions"), vcs = list_of("vcs"), admin_uids = list_of("admin_uids"),
        first_partition = not cfg_error and given.partitions[1] or nil,
        nodes_gpus = given.nodes_gpus, slurm_uid = given.slurm_uid or own_uid(),
    }
end

return M
