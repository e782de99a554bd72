"""What can be done about a message: changes of the text that an editor offers.

making.py    what a fix is, and what it is made from
names.py     names that are wrong, taken, missing or not used
operands.py  operands of another type than is wanted: cast, transposed; params to declare
attributes.py  axes and shapes that do not fit
results.py   results: their types, their names, what a graph returns
"""
