"""`gpuops job` runs jobs in containers at night, each in a VM of its own with vGPUs.

Jobs wait in a queue. A night starts VMs for them; `gpuops job run`, which cron calls, starts their containers, keeps
their output, and stops them after a checkpoint before the desktops come back.

Read in this order:
`job`, `jobs_file`       a job, the records of what happened to it, and the file of jobs
`dependencies`           which jobs must have finished before others (pure)
`job_turns`              admission, order between owners, and which job runs in which VM (pure)
`template_vms`, `job_vms`  VMs made from the policy's template for jobs that lack one
`job_plan`               how many jobs fit on GPUs at once, for `job plan` (pure)
`container_command`, `guest_container`  the container in the guest
`job_store`              jobs and records, in the journal's database
`job_run`                one pass over jobs: start, collect output, checkpoint, stop
`nightly`                the passes that nights make, and what the core calls
`job_queue`              the commands: plan, submit, list, logs, cancel, run
`view`, `submitted_view`, `cli`, `tasks`  output, command line, Ansible

The core reaches it by `gpuops/extensions.py`: the command `job`, its documents, two Ansible modules, and
`nightly.JOBS_AT_NIGHT` for nights.
"""
