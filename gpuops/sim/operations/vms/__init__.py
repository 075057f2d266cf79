"""What is done to one VM: its hardware, power, snapshots, copies and moves."""
