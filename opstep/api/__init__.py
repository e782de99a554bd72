"""The Python API behind `import opstep`: programs, the named tensors they hold, inputs, results,
devices by name. It runs graphs through `runtime` and knows no file format of a recording, no
protocol and no command line.
"""
