"""The typed models of everything an author can declare, and how mappings become them. Pure: no file is read here."""
