"""Plans changes of hosts: `scheduler` (time slices), `graphics` (modes, MIG, passthrough), `change` (rolling)."""
