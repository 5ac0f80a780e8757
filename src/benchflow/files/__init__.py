"""Files that are whole or absent: the one way this project writes what must not be lost.

`write_atomic` replaces one file, `staged_folder` a whole folder. Both write under a temporary name beside
the target, flush, then rename; whatever interrupts them, a reader sees the old content or the new.
`write_unseen` is for the files of a folder that is staged.
"""

from benchflow.files.atomic import copy_file, write_atomic, write_unseen
from benchflow.files.staging import staged_folder

__all__ = ["copy_file", "staged_folder", "write_atomic", "write_unseen"]
