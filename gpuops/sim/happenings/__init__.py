"""What other people, hosts and vCenter itself do beside the calls of a client, on order of a fault rule."""
