"""The drivers of a course: agents in turns (`agents`), and kept workspaces (`replay`).

Gym actions (`benchflow.gym`) and tasks of cubes (`benchflow.evaluation`) are driven the same way, in layers above.
"""
