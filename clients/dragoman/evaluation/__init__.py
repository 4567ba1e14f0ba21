"""Translates a test set with any system and scores it: `dragoman evaluate`.

A package of its own, above model, export and client, because it compares what they make: in any of them
it would be an import against the direction. Nothing imports it; the command line knows its name.
A system is a checkpoint, a bundle, a running server or a file. What only one kind of system needs is
imported when one of that kind is evaluated.
"""
