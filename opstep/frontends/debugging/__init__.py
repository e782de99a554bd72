"""What a debugger of Python programs asks for, without the libraries that they use: conditions
(`breakpoints`), `names` of ops and modules, `watches`, lines whose ops are `listed`.
"""
