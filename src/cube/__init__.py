"""The gym layer: tasks, tools and benchmarks that any agent can drive."""
