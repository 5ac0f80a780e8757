"""The texts of a package and what they say: `task.md`, `task.toml`, prompts, presets, the environment manifest."""
