"""Subcommands of `dragoman` that run the server."""
