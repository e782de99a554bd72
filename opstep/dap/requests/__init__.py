"""The requests, a file a family. Every module here is imported by `registry.requests()`."""
