"""The Transformer, its tokenizer, its data and its training.

`config`, `vocab`, `tokenizer`, `schedule` and `generated` do not import torch; the server uses
`tokenizer` and `vocab` and nothing else from here.
"""
