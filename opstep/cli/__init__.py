"""The command line: one module a command. It parses options, calls the API and words the results;
no logic that a Python caller would miss lives here.
"""
