"""Plans rolling changes: a few hosts at a time are emptied, changed, rebooted, and get their VMs back.

Problem: some settings need a reboot, a host is empty for a quarter of an hour meanwhile, and a night of reboots may
be interrupted. Choice: the list of hosts with their new settings is stored before anything changes. Where the VMs of a
host go is decided when its turn comes, on the current state of vCenter; the journal records which VMs were taken from
which host. So a run that continues after a crash needs only the journal. What this gives up: no VM of another host is
moved to make room; a VM that finds no place is refused by name.
"""
