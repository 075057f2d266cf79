"""Where a VM may run: devices, network cards, reserved capacity, HA."""
