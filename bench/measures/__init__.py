"""One module per way of measuring; each finds one or more lines of the table."""
