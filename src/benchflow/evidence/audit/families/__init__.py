"""The built-in families of exploits, a module per kind of trick; `benchflow.plugins.FAMILIES` lists them."""
