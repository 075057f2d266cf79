"""Commands about desktops that nights suspend for ML VMs, and what was made of nights."""
