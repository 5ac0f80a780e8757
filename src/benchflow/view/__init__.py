"""The web viewer: job folders in, pages for people out. It reads through `benchflow.record` and changes nothing.

Pages are rendered on the server. Text of agents, verifiers and file names is untrusted.
"""
