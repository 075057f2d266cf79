"""The command line."""


def main() -> None:
    """Run the `gpuops` command.

    It has the place and the name of the `main` of the other project named gpuops (`gpuops.distribution`): the script
    that pip puts over ours where both are installed starts ours, which refuses to run.
    """
    from gpuops.cli.app import main as run

    run()
