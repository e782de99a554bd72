#define Py_BUILD_CORE_MODULE 1
#include <Python.h>
#include <opcode.h>

#include "internal/pycore_frame.h"
#if PY_VERSION_HEX >= 0x030e0000
#include "internal/pycore_interpframe.h"
#include "internal/pycore_stackref.h"
#endif
#include "internal/pycore_dict.h"
#include "shim.h"

typedef struct _PyInterpreterFrame Frame;

/* Frames that have not begun, and entries of the C stack; 3.13 has one whose code is a stub. */
static Frame *complete(Frame *frame) {
  while (frame && _PyFrame_IsIncomplete(frame)) frame = frame->previous;
  return frame;
}

void *shim_current(void) {
  PyThreadState *state = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030d0000
  return complete(state->current_frame);
#else
  return complete(state->cframe->current_frame);
#endif
}

void *shim_of(PyFrameObject *frame) { return frame->f_frame; }

void *shim_caller(void *frame) { return complete(((Frame *)frame)->previous); }

PyCodeObject *shim_code(void *frame) {
#if PY_VERSION_HEX >= 0x030e0000
  return (PyCodeObject *)SHIM_OBJECT(((Frame *)frame)->f_executable.bits);
#elif PY_VERSION_HEX >= 0x030d0000
  return (PyCodeObject *)((Frame *)frame)->f_executable;
#else
  return ((Frame *)frame)->f_code;
#endif
}

PyObject **shim_slots(void *frame) { return (PyObject **)((Frame *)frame)->localsplus; }
PyObject *shim_dict(void *frame) { return ((Frame *)frame)->f_locals; }
PyObject *shim_globals(void *frame) { return ((Frame *)frame)->f_globals; }

int shim_lasti(void *frame) {
#if PY_VERSION_HEX >= 0x030e0000
  return (int)(((Frame *)frame)->instr_ptr - _PyFrame_GetBytecode((Frame *)frame)) * 2;
#else
  return _PyInterpreterFrame_LASTI((Frame *)frame) * 2;
#endif
}

#if PY_VERSION_HEX < 0x030c0000
/* The argument of RESUME is 0 at a start. Instructions may be specialised, their names not. */
int shim_is_fresh(void *frame) {
  int at = shim_lasti(frame);
  return at < 0 || ((unsigned char *)shim_code(frame)->co_code_adaptive)[at + 1] == 0;
}

int shim_yields(void *frame) {
  int at = shim_lasti(frame);
  if (at < 0) return 0;
  unsigned char op = ((unsigned char *)shim_code(frame)->co_code_adaptive)[at];
  return op == YIELD_VALUE || op == SEND;
}

Py_tracefunc shim_trace(PyThreadState *state) { return state->c_tracefunc; }

void shim_set_trace(PyThreadState *state, Py_tracefunc function) {
  state->c_tracefunc = function;
  state->cframe->use_tracing = function ? 255 : 0;
}
#else
int shim_is_fresh(void *frame) { return 1; }  /* PY_START and PY_RETURN say so themselves */
int shim_yields(void *frame) { return 0; }
#endif

Py_ssize_t shim_entries(PyObject *dict, PyObject ***entries) {
  PyDictObject *d = (PyDictObject *)dict;
  PyDictKeysObject *keys = d->ma_keys;
  if (d->ma_values || keys->dk_kind != DICT_KEYS_UNICODE || keys->dk_nentries != d->ma_used)
    return -1;
  *entries = (PyObject **)DK_UNICODE_ENTRIES(keys);
  return d->ma_used;
}
