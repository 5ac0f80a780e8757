"""`model:MODEL`: a language model with a shell and file tools, or as a policy on gym tasks."""
