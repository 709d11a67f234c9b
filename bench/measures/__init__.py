"""One module per measure; each fills one or more lines of the table."""
