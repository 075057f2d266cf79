"""A shell on a host, for what only the host's own nvidia-smi can. SSH, the host's key checked; asyncssh is an extra."""
