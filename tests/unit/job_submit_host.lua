-- Stands in for slurmctld: runs Gandiva's job_submit module on one job as Slurm 22.05 would.
-- usage: lua5.1 job_submit_host.lua MODULE CASE.  CASE is a Lua file that returns
-- {configure = {...}, call = "submit"|"modify", desc = {...}, rec = {...}, parts = {...}, uid = N, break_field = NAME}
-- Prints "rc N", "user TEXT", "log TEXT", and "set NAME=VALUE" for each change of the job.

local NO_VAL, NO_VAL16 = 4294967294, 65534
slurm = {
    SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, NO_VAL = NO_VAL,
    log_user = function(...) print("user " .. string.format(...)) end,
    log_info = function(...) print("log " .. string.format(...)) end,
    log_error = function(...) print("log " .. string.format(...)) end,
}

--- A job's description as slurmctld gives it: numbers nobody gave are NO_VAL, and nothing may be set to nil.
local UNSET = {
    priority = NO_VAL, num_tasks = NO_VAL, min_nodes = NO_VAL, max_nodes = NO_VAL, ntasks_per_node = NO_VAL16,
    ntasks_per_tres = NO_VAL16, sockets_per_node = NO_VAL16, het_job_offset = NO_VAL, shared = NO_VAL16,
    nice = NO_VAL, time_limit = NO_VAL, begin_time = 0,
}

local function description(given, break_field)
    local env = {}
    for i, line in ipairs(given.spank or {}) do env[i - 1] = line end
    given.spank_job_env, given.spank_job_env_size = env, #(given.spank or {})
    return setmetatable({}, {
        __index = function(_, name)
            if name == break_field then error("broken on purpose: " .. name) end
            if given[name] ~= nil then return given[name] end
            return UNSET[name]
        end,
        __newindex = function(_, name, value)
            if value == nil then error("slurm: a field cannot be set to nil: " .. name) end
            given[name] = value
            print(string.format(type(value) == "number" and "set %s=%d" or "set %s=%s", name, value))
        end,
    })
end

local module, case = dofile(arg[1]), dofile(arg[2])
if case.configure then module.configure(case.configure) end
local desc = description(case.desc or {}, case.break_field)
local rc
if case.call == "modify" then
    rc = module.modify(desc, case.rec, case.parts, case.uid)
else
    rc = module.submit(desc, case.parts, case.uid)
end
for name, value in pairs(case.desc.environment or {}) do print("environment " .. name .. "=" .. value) end
print("rc " .. rc)
