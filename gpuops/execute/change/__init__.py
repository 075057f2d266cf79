"""Changes of hosts: their settings, and rolling changes host by host; and the moves of a defragmentation."""
