"""The commands of the terminal debugger, a family a file."""
