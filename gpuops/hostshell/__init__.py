"""Commands on hosts and in guests over SSH, with the host's key checked; asyncssh is an optional dependency."""
