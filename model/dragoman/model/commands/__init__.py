"""Subcommands of `dragoman` that corpus building, training and evaluation provide."""
