#pragma once
#include "shim.h"

void set_handle_type(PyObject* type);
PyObject* find_event(PyObject*, PyObject*);
PyObject* list_codes(PyObject*, PyObject*);
PyObject* describe_frame(PyObject*, PyObject*);
PyObject* slots_of(PyObject*, PyObject*);
PyObject* content_of(PyObject*, PyObject*);
PyObject* statistics(PyObject*, PyObject*);

// loops.cpp
PyObject* last_event(PyObject*, PyObject*);
PyObject* turns_of(PyObject*, PyObject*);
