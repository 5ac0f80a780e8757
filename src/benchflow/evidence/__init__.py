"""Evidence: packages are proven and audited by running them; results are packed so that a stranger can check them."""
