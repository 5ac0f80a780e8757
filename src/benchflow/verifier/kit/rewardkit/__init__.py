"""Checks for reward kits, run beside a verifier inside its sandbox; Python 3.9 or newer, nothing else.

A module of checks calls them when it is imported, and each call adds one criterion:

    import rewardkit as rk
    rk.file_exists("out.csv")
    rk.command_succeeds("python3 -m out --self-test", weight=2.0)
"""

from .checks import (
    command_output_contains,
    command_output_matches,
    command_output_matches_regex,
    command_succeeds,
    csv_cell_equals,
    diff_ratio,
    file_contains,
    file_contains_regex,
    file_exists,
    file_matches,
    file_not_exists,
    files_equal,
    http_response_contains,
    http_status_equals,
    json_key_equals,
    json_path_equals,
    sqlite_query_equals,
    trajectory_tool_not_used,
    trajectory_tool_used,
    trajectory_turn_count,
    xlsx_cell_equals,
)
from .session import criterion

__all__ = [
    "command_output_contains",
    "command_output_matches",
    "command_output_matches_regex",
    "command_succeeds",
    "criterion",
    "csv_cell_equals",
    "diff_ratio",
    "file_contains",
    "file_contains_regex",
    "file_exists",
    "file_matches",
    "file_not_exists",
    "files_equal",
    "http_response_contains",
    "http_status_equals",
    "json_key_equals",
    "json_path_equals",
    "sqlite_query_equals",
    "trajectory_tool_not_used",
    "trajectory_tool_used",
    "trajectory_turn_count",
    "xlsx_cell_equals",
]
