"""`python -m gpuops` is the `gpuops` command."""

from gpuops.cli.app import main

if __name__ == "__main__":
    main()
