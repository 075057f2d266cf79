"""Standard and distributed switches, their port groups, members and ports."""
