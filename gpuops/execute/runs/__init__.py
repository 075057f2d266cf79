"""Read runs from the journal: their kinds, which are open, the VMs that nights took, and VMs that were given up."""
