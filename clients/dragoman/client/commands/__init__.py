"""Subcommands of `dragoman` that the client provides."""
