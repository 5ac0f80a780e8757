"""Other layouts: export to the split layout, migration from it and from Terminal-Bench, and proof of the round trip."""
