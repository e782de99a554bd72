// The ways in: a trace function before the debugger's (3.11), callbacks of sys.monitoring (3.12+).
#include "hooks.h"

#include "log.h"

static PyThreadState* thread;  // the main one, which alone is recorded
static bool is_on, is_busy;

// Finalizers run after the event: they are code of the program, whose lines are events themselves.
struct Busy {
  Busy() {
    is_busy = true;
    forget_index();
  }
  ~Busy() {
    is_busy = false;
    if (dying.empty()) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    let_die();
    PyErr_Restore(type, value, trace);
  }
};

static PyThreadState* state_of(unsigned long id) {
  PyThreadState* s = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (s && s->thread_id != id) s = PyThreadState_Next(s);
  return s;
}

bool set_thread(unsigned long id) {
  thread = state_of(id);
  return thread != nullptr;
}

#if PY_VERSION_HEX < 0x030c0000
static Py_tracefunc theirs;

static void handle(PyFrameObject* frame, int what, PyObject* value) {
  void* f = shim_of(frame);
  Code* code = code_of(shim_code(f));
  if (!code->is_user) return;
  Busy busy;
  if (what == PyTrace_LINE)
    on_line(activation_of(f, code), f, PyFrame_GetLineNumber(frame), false);
  else if (what == PyTrace_CALL)
    on_call(f, code, !code->is_generator || shim_is_fresh(f));
  else if (!code->is_generator || !value || !shim_yields(f))
    on_return(f, code);
}

static int trace(PyObject* object, PyFrameObject* frame, int what, PyObject* value) {
  if (is_on && !is_busy && what != PyTrace_EXCEPTION && what <= PyTrace_RETURN)
    handle(frame, what, value);
  return theirs ? theirs(object, frame, what, value) : 0;
}

void compose() {
  if (!is_on || !thread) return;
  Py_tracefunc function = shim_trace(thread);
  if (function != trace) theirs = function;
  shim_set_trace(thread, trace);
}

void turn_on() {
  is_on = true;
  compose();
}

void turn_off() {
  is_on = false;
  if (thread && shim_trace(thread) == trace) shim_set_trace(thread, theirs);
}
#else
static PyObject* disable;

void set_disable(PyObject* value) { disable = Py_NewRef(value); }
void compose() {}
void turn_on() { is_on = true; }
void turn_off() { is_on = false; }

// NULL: the code is not the user's, and is not asked for again.
static Code* users(PyObject* code) {
  Code* found = code_of((PyCodeObject*)code);
  return found->is_user ? found : nullptr;
}

static bool is_mine() { return is_on && !is_busy && PyThreadState_Get() == thread; }

PyObject* on_py_start(PyObject*, PyObject* const* args, Py_ssize_t) {
  Code* code = users(args[0]);
  if (!code) return Py_NewRef(disable);
  if (is_mine()) {
    Busy busy;
    on_call(shim_current(), code, true);
  }
  Py_RETURN_NONE;
}

PyObject* on_py_line(PyObject*, PyObject* const* args, Py_ssize_t) {
  Code* code = users(args[0]);
  if (!code) return Py_NewRef(disable);
  if (is_mine()) {
    Busy busy;
    void* frame = shim_current();
    on_line(activation_of(frame, code), frame, (uint32_t)PyLong_AsLong(args[1]), false);
  }
  Py_RETURN_NONE;
}

PyObject* on_py_return(PyObject*, PyObject* const* args, Py_ssize_t) {
  Code* code = users(args[0]);
  if (!code) return Py_NewRef(disable);
  if (is_mine()) {
    Busy busy;
    on_return(shim_current(), code);
  }
  Py_RETURN_NONE;
}

PyObject* on_py_unwind(PyObject*, PyObject* const* args, Py_ssize_t) {
  Code* code = users(args[0]);  // the event cannot be turned off for some code alone
  if (code && is_mine()) {
    Busy busy;
    on_return(shim_current(), code);
  }
  Py_RETURN_NONE;
}
#endif
