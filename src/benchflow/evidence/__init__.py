"""Evidence: prove and audit packages by running them, and publish results that others can check."""
