"""What is said of a vCenter: where it is, how one logs in, and what its entry in the configuration file adds."""
