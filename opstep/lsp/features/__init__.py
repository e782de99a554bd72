"""The requests of the Language Server Protocol, a module a family."""
