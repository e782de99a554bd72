"""What helps while a line is being written: where the cursor stands and what could stand there.

cursor.py        the statement around the cursor, read from its tokens, however broken it is
scope.py         values, named tensors, symbols and graphs that can be used at the cursor
matching.py      which of them an op takes there: its shape rule, tried
snippets.py      calls and statements with tab stops
proposals.py     what is proposed, in its order
callees.py       proposals at the start of a statement and behind its =
arguments.py     proposals inside the parentheses: operands, attributes, their values
declarations.py  proposals for types, dims and what stands outside of graphs
"""
