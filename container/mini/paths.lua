-- In a mini cluster alone: tells at sbatch time that a job's working directory or the directory of its output is
-- not there inside. slurmd could not open the output then, and the job would end by signal 53 without a word.
-- Told, not refused: a job that runs before it may make the directory.
local M = {}
local NO_ENTRY, NOT_A_DIRECTORY = 2, 20  -- errno: ENOENT, ENOTDIR

-- True when there is surely no such directory. One that slurmctld may not enter counts as there. The dot keeps
-- open() from waiting for a writer, where somebody made a FIFO of that name.
local function is_missing(dir)
    local file, _, errno = io.open(dir .. "/.", "r")
    if file then file:close() end
    return file == nil and (errno == NO_ENTRY or errno == NOT_A_DIRECTORY)
end

-- The directory of an output file as far as it is known before Slurm fills in %j and the like; nil for none.
local function folder_of(file, work_dir)
    if file == nil or file == "" then return nil end
    if file:sub(1, 1) ~= "/" then file = (work_dir or "") .. "/" .. file end
    return file:match("^[^%%]*"):match("^(.*)/")
end

local function tell(what, dir, so)
    slurm.log_user("gandiva: %s %s does not exist inside this mini cluster: %s; next: make it there, or show one of"
                   .. " this machine's: gandiva mini down, then gandiva mini up --share DIR", what, dir, so)
end

function M.tell(job_desc)
    local work_dir, told = job_desc.work_dir, {}
    if work_dir and is_missing(work_dir) then
        tell("the working directory", work_dir,
             "the job starts in /tmp, or ends at once (signal 53) if its output is to lie there")
        told[work_dir] = true
    end
    for _, output in ipairs {{"std_out", "the directory of --output,"}, {"std_err", "the directory of --error,"}} do
        local dir = folder_of(job_desc[output[1]], work_dir)
        if dir and not told[dir] and is_missing(dir) then
            tell(output[2], dir, "the job ends at once (signal 53)")
            told[dir] = true
        end
    end
end

return M
