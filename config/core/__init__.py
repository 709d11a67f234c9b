"""Code that every app may import and that imports no app."""
