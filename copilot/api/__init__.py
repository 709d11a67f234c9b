"""REST v1 (E3): parse a request, make one call, answer in the shape that clients rely on."""
