"""The wire forms of scripted replies: one module per dialect of model providers."""
