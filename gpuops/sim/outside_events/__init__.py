"""Events outside the calls of a client: what other people, hosts and vCenter itself do when a fault rule says so."""
