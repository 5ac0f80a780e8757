"""One module per page: records in, the values of its template out."""
