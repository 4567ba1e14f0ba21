"""From a checkpoint to a bundle that the server can load, and the proof that both agree.

`bundle` is the contract with the server: torch-free, and the only module the server imports.
"""
