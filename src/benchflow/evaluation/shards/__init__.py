"""A plan as several jobs: what belongs to which of them, and how they become one again."""
