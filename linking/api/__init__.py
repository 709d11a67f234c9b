"""REST for people and their programs: tokens to confirm, links to see and change."""
