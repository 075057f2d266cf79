"""Commands that set what hosts do with their GPUs, host by host."""
