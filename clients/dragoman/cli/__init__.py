"""The `dragoman` command: finds a subcommand's module and hands over to it."""
