"""Tasks of several services: compose files, and the containers that they describe."""
