-- job_submit.lua of a site that has none of its own. Install as /etc/slurm/job_submit.lua on the controller, with
-- the gandiva_*.lua files beside it. A site with its own script takes these parts into it: the loading, the
-- configuration, and the two calls. Ordinary jobs pass through untouched, and a module that does not load
-- refuses Gandiva's jobs only.
local loaded, gandiva = pcall(dofile, "/etc/slurm/gandiva_job_submit.lua")
if not loaded then
    local why = gandiva
    local function refuse_ours(job_desc)
        if job_desc.partition ~= "gandiva" then return slurm.SUCCESS end
        slurm.log_user("gandiva: its job_submit module does not load (%s); next: tell the administrator", why)
        return slurm.ERROR
    end
    gandiva = {configure = function() end, submit = refuse_ours, modify = function() return slurm.SUCCESS end}
end

gandiva.configure {
    partitions = {"gandiva"},
    -- the most GPUs one node of each type has
    nodes_gpus = {v100 = 4, k80 = 4},
    -- the names of gandiva.yaml's virtual_clusters, where it has some: vcs = {"vision", "nlp"},
}

function slurm_job_submit(job_desc, part_list, submit_uid)
    return gandiva.submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return gandiva.modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
