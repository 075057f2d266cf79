"""A site file describes what hosts and VMs should be: `gpuops diff`, `apply`, `assert`, `export` and `drift` use it.

`site_file` decodes the file; `wishes` compares it with one snapshot. `site_plan` turns each
difference into a request that a command of the core has too, such as `SetMode` or `Attach`, and plans all of them
together; `applying` executes the plan with the core's executors: hosts first, then VMs.
"""
