"""Build a parallel corpus from text that Debian ships in two languages.

This package owns fetching, reading, cleaning and splitting. It knows nothing
about tokenizers, models or training: its output is tab-separated text and a
manifest.

    errors     what can go wrong, one tree
    languages  supported pairs and their spellings in file names
    debian     downloads and unpacks packages, installs nothing
    ddtp, lohelp, gnomehelp, man, ding   one reader per source, two of the dictionary ding
    roff       manual page markup to plain blocks
    align      pairs blocks of two pages made from one document
    clean      normalises, splits and filters pairs
    sources    which packages feed which reader, and their role in the split
    split      removes duplicates, holds test sets out
    fetch      downloads what a set of sources needs
    manifest   what was built from what, and whether it is still intact
    lock       one run at a time per folder
    build      runs the steps in order
"""
