-- The site's own job_submit.lua, as a mini cluster has it: Gandiva's module, and nothing else of the site's.
local gandiva = dofile("/etc/slurm/gandiva_job_submit.lua")

gandiva.configure {
    partitions = {"gandiva"},
    -- the most GPUs one node of each type has
    nodes_gpus = {@NODES_GPUS@},
}

function slurm_job_submit(job_desc, part_list, submit_uid)
    return gandiva.submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return gandiva.modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
