"""What the journal knows of runs: their kinds, which are open, what nights took, and what was given up."""
