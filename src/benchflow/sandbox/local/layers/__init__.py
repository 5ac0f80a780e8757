"""The files of local sandboxes on this machine: the store, stacks of layers, and volumes of a limited size."""
