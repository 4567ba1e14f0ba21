"""Subcommands of `dragoman` that write and check bundles."""
