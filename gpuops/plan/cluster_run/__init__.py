"""Plans the commands that start a program in the guests of a cluster, and reads the times of an all-reduce. Pure."""
