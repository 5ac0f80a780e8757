"""`model:MODEL`: a language model with a shell and file tools, or deciding on gym tasks."""
