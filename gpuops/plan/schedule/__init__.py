"""What a night is worth and in which order: which GPUs desktops free tonight, which jobs run there, and when each
desktop is back. `plan/rotation` calls `schedule`. See README.md.
"""
