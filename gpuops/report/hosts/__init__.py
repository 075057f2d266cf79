"""Settings of hosts, and their changes host by host."""
