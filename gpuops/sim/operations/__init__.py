"""What wire methods do to the state, one file per kind of work: faults are vim faults, effects are recorded."""
