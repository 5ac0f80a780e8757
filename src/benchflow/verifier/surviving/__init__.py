"""Which changes of an agent survive into verification: pure rules on paths, start-up files, libraries, repositories."""
