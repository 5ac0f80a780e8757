"""The `bench` command: one module per command group, loaded when it is called."""
