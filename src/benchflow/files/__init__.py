"""Files that are complete or absent: how this project writes what must not be lost.

`write_atomic` replaces one file, `staged_folder` a whole folder. Both write under a temporary name beside the target,
flush, then rename: a reader sees either the old or the new content, even if the writer is interrupted.
`write_unseen` is for files in a staged folder.
"""

from benchflow.files.atomic import copy_file, staged_folder, write_atomic, write_unseen

__all__ = ["copy_file", "staged_folder", "write_atomic", "write_unseen"]
