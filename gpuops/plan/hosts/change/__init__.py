"""Plans rolling changes, in which hosts are emptied, set, rebooted and filled again, a few at a time.

Problem: a setting that is in force after a reboot only costs a host its VMs for a quarter of an hour, and a night of
such reboots is cut off sooner or later.
Choice: a change is a list of hosts and of what each is set to, kept before anything is touched. Where its VMs go is
decided host by host on what vCenter then shows, by the rules that placements follow; what belongs to a host is what the
journal says was taken from it. So a run that goes on after a crash needs no memory but the journal's.
What this gives up: a host is not emptied better by moving others first; what does not fit is refused by name.
"""
