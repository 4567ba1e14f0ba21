"""The parts of `hugging_face`: a folder's files, settings and tensors, and each family's vocabulary."""
