"""Sessions that tools use: a browser, a chat."""
