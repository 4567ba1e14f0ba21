"""Generated messages and stubs of the Dragoman API, version 1. Edit the .proto file, then run `make proto`."""
