"""The operations that are done on our simulator and on vcsim, and what each comes to there (`outcomes.tsv`)."""
