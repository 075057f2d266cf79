"""Options, output and running of commands: what each command of the command line uses."""
