"""Pages. Parse, one call, render."""
