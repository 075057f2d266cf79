"""Graphics and passthrough of hosts: what GPUs are used for, and the changes of it."""
