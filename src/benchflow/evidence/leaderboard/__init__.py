"""Leaderboard files: jobs packed so that a stranger can check every byte, statistic and verdict, offline.

`board_export` packs jobs, `board_check` examines a file. Both compute the same claims (`board_claims`) and refuse the
same selections (`board_selection`). `verdicts_again` scores kept workspaces, `board_signing` signs files.
"""
