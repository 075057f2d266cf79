"""What is done to one host: maintenance, graphics, passthrough, modes of devices."""
