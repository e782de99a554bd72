/* All that is private of the interpreter, in functions that are the same for each version. */
#pragma once
#include <Python.h>
#ifdef __cplusplus
extern "C" {
#endif

void *shim_current(void);               /* the frame that runs now; no frame object is made */
void *shim_of(PyFrameObject *frame);
void *shim_caller(void *frame);
PyCodeObject *shim_code(void *frame);   /* borrowed, as all that follow */
PyObject **shim_slots(void *frame);     /* co_nlocalsplus of them */
PyObject *shim_dict(void *frame);       /* locals of a module or a class body; NULL in functions */
PyObject *shim_globals(void *frame);
int shim_lasti(void *frame);
int shim_is_fresh(void *frame);         /* it is called, not resumed */
int shim_yields(void *frame);           /* it stops at a yield or an await, and is not done */

/* The pairs (key, value) of a dict whose keys are all texts and that has no holes; else -1. */
Py_ssize_t shim_entries(PyObject *dict, PyObject ***entries);

#if PY_VERSION_HEX >= 0x030e0000        /* references to objects are tagged */
#define SHIM_OBJECT(p) ((PyObject *)((uintptr_t)(p) & ~(uintptr_t)3))
#else
#define SHIM_OBJECT(p) (p)
#endif

#if PY_VERSION_HEX < 0x030c0000
Py_tracefunc shim_trace(PyThreadState *state);
void shim_set_trace(PyThreadState *state, Py_tracefunc function);  /* its object stays */
#endif

#ifdef __cplusplus
}
#endif
