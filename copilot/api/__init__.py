"""REST API v1: parse a request, call one service, and answer in a stable form."""
