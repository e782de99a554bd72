#pragma once
#include "shim.h"

bool set_thread(unsigned long id);  // the one that is recorded
void compose();                     // again, after a debugger has set its trace function
void turn_on();
void turn_off();
void forget_index();                // of events, which queries use

#if PY_VERSION_HEX >= 0x030c0000
void set_disable(PyObject* value);
PyObject* on_py_start(PyObject*, PyObject* const*, Py_ssize_t);
PyObject* on_py_line(PyObject*, PyObject* const*, Py_ssize_t);
PyObject* on_py_return(PyObject*, PyObject* const*, Py_ssize_t);
PyObject* on_py_unwind(PyObject*, PyObject* const*, Py_ssize_t);
#endif
