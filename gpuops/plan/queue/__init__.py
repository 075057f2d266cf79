"""Places for VMs that do not exist yet, for `gpuops place`: one after another, or by the solver of `batch`."""
