"""The assessor of an arena package, offered to clients and agents of others over A2A."""
