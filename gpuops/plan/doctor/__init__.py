"""Doctor: what stands in the way of the verbs, per vCenter, cluster, host, GPU and VM, with what to do about it."""
