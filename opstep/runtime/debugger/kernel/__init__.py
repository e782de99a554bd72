"""Into a kernel: one block of one launch runs in a simulator, under a debugger of Python.

`launches` says what an op launches; `job` puts one of them, with the op's operands, into a file;
`process` starts a child that runs it (`child`, and in it `block`) and is debugged with debugpy.
"""
