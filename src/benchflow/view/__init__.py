"""The web viewer: job folders in, pages for people out. It reads through `benchflow.record` and changes nothing.

Pages are rendered on the server. Everything that an agent, a verifier or a file name says is untrusted text.
"""
