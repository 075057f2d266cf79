"""Scripts that gpuops runs in guests (`.sh`, `.ps1`), the commands that run them, and parsers of their output."""
