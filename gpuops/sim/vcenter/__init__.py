"""What a vCenter keeps besides its inventory: tasks, events, permissions, custom fields, tags, counters."""
