"""Jobs in words: tables and lines for people."""
