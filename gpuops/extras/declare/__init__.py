"""One file says what hosts and VMs should be: `gpuops diff`, `apply`, `assert`, `export` and `drift`.

The file is decoded into wishes (`site_file`), which `wishes` compares with one snapshot. `site_plan` turns each
difference into a request that a command of the core has too, such as `SetMode` or `Attach`, and plans all of them
together; `applying` carries the plan out by the core's executors: hosts first, then VMs. Nothing here plans or changes
anything by itself.
"""
