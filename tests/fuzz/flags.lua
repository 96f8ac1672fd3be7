-- Hostile jobs through Gandiva's job_submit module, one after the other: nothing may be raised out of it.
-- usage: lua5.1 flags.lua MODULE < CASES.  A case is a 32-bit length and a Lua table's text, as
-- {call = "submit"|"modify", desc = {...}, rec = {...}, spank = {...}, uid = N}.
-- Prints a line for each: the code it returned, "fault" where a mistake of ours was logged, what the user was told.

local fault, told
slurm = {
    SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, NO_VAL = 4294967294,
    log_user = function(...) told = string.format(...) end,
    log_info = function(...) string.format(...) end,
    log_error = function(...) fault = string.format(...) end,
}

local module = dofile(arg[1])
module.configure {partitions = {"gandiva"}, nodes_gpus = {v100 = 4, k80 = 2}, slurm_uid = 64, admin_uids = {77}}
local parts = {gandiva = {flag_default = 0, total_nodes = 6}, cpu = {flag_default = 1, total_nodes = 9}}

local function description(given, spank)
    local env = {}
    for i, line in ipairs(spank) do env[i - 1] = line end
    given.spank_job_env, given.spank_job_env_size = env, #spank
    return setmetatable({}, {
        __index = given,
        __newindex = function(_, name, value)
            if value == nil then error("slurm: a field cannot be set to nil: " .. name) end
            given[name] = value
        end,
    })
end

local function number()
    local head = io.read(4)
    if not head then return nil end
    local a, b, c, d = head:byte(1, 4)
    return a + 256 * (b + 256 * (c + 256 * d))
end

while true do
    local length = number()
    if not length then break end
    local case = assert(loadstring("return " .. io.read(length)))()
    fault, told = nil, ""
    local desc = description(case.desc, case.spank)
    local rc
    if case.call == "modify" then
        rc = module.modify(desc, case.rec, parts, case.uid)
    else
        rc = module.submit(desc, parts, case.uid)
    end
    local text = (fault and "fault " .. fault or "told " .. told):gsub("[^ -~]", "?")
    print(rc .. " " .. text)
    io.stdout:flush()
end
