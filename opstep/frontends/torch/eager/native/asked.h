// Ops that a debugger asks for: Python is called after each. Nothing is looked at for that.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <ATen/record_function.h>

#include <atomic>

#include "ran.h"
#include "storages.h"

namespace opstep {
namespace {

// An op that is made of others never gets below autograd: PyTorch's own observers show where it is called.
enum Asking { NOT_ASKED, ASKED, COMPOSITE };

std::atomic<uint32_t> asked_version{0};  // even: nothing is asked for
PyObject *wants, *on_asked;              // (name, overload) -> Asking; (name, overload, arguments, results, composites)
thread_local std::vector<const Facts*> composites;  // that are asked for, whose ops run now

// Python answers once for each op, until it asks for others.
Asking asking_for(const Facts& facts, uint32_t version) {
  static thread_local ska::flat_hash_map<const Facts*, Asking> known;
  static thread_local uint32_t known_version = 0;
  if (known_version != version) known.clear();
  known_version = version;
  auto found = known.find(&facts);
  if (found != known.end()) return found->second;
  Gil gil;
  PyObject* answer = called(wants, Py_BuildValue("(ss)", facts.name.c_str(), facts.overload.c_str()));
  auto asking = static_cast<Asking>(PyLong_AsLong(answer));
  Py_DECREF(answer);
  return known[&facts] = asking;
}

bool is_asked(const Facts& facts) {
  uint32_t version = asked_version.load(std::memory_order_acquire);
  return version % 2 && asking_for(facts, version) == ASKED;
}

// Python gets results as others that share their memory: a tensor that has an object of Python's cannot become
// a parameter any more.
Arguments aliases_of(const Arguments& values) {
  auto alias = [](const at::Tensor& t) {
    auto* impl = t.unsafeGetTensorImpl();
    if (t.key_set().has(c10::DispatchKey::Python)) return t;
    return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
  };
  Arguments found;
  for (const auto& v : values) for_tensors(v, [&](const at::Tensor& t) { found.emplace_back(alias(t)); });
  return found;
}

void give_asked(const Facts& facts, const Arguments& arguments, const Arguments& results) {
  Gil gil;
  PyObject* around = PyList_New(0);
  for (const Facts* one : composites) {
    PyObject* name = PyUnicode_FromString(one->name.c_str());
    PyList_Append(around, name);
    Py_DECREF(name);
  }
  call(on_asked, Py_BuildValue("(ssNNN)", facts.name.c_str(), facts.overload.c_str(), given_to(facts, arguments),
                               given_by(facts, arguments, aliases_of(results)), around));
}

struct Composite : at::ObserverContext {
  const Facts* facts;
  Arguments arguments;
};

std::unique_ptr<at::ObserverContext> composite_begins(const at::RecordFunction& function) {
  uint32_t version = asked_version.load(std::memory_order_acquire);
  if (!is_active || version % 2 == 0 || self().is_within) return nullptr;
  if (!c10::impl::tls_is_dispatch_key_included(KEY) || c10::impl::tls_is_dispatch_key_excluded(KEY)) return nullptr;
  static thread_local ska::flat_hash_map<const char*, const Facts*> known;  // by the schema's own name
  auto& facts = known[function.name()];
  if (!facts) {
    auto name = function.operator_name();
    auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
    if (!op) return nullptr;
    facts = &facts_of(*op);
  }
  if (asking_for(*facts, version) != COMPOSITE) return nullptr;
  auto found = std::make_unique<Composite>();
  found->facts = facts;
  found->arguments.assign(function.inputs().begin(), function.inputs().end());
  composites.push_back(facts);
  return found;
}

void composite_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* one = static_cast<Composite*>(context);
  if (!one) return;
  composites.pop_back();
  const auto& results = function.outputs();
  size_t count = one->facts->results;
  if (results.size() >= count && one->arguments.size() == static_cast<size_t>(one->facts->arguments) && !self().is_within)
    give_asked(*one->facts, one->arguments, {results.end() - count, results.end()});
}

void observe_composites(bool value) {
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  if (value == (handle != at::INVALID_CALLBACK_HANDLE)) return;
  if (value) {
    at::RecordFunctionCallback observer(&composite_begins, &composite_ends);
    handle = at::addGlobalCallback(observer.needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  } else {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

// (wants, asked), which live as long as Python; None for nothing; whether composites are among them
PyObject* py_ask(PyObject*, PyObject* arguments) {
  PyObject *wanted, *asked;
  int has_composites;
  if (!PyArg_ParseTuple(arguments, "OOp", &wanted, &asked, &has_composites)) return nullptr;
  wants = Py_NewRef(wanted);
  on_asked = Py_NewRef(asked);
  uint32_t version = asked_version.load();
  asked_version = (version | 1) + (wanted == Py_None ? 1 : 2);  // above the one before, odd where something is
  HANDLE_TH_ERRORS
  observe_composites(has_composites);
  END_HANDLE_TH_ERRORS
  Py_RETURN_NONE;
}

// Whether results are looked at from now on; what was seen before may have been written meanwhile.
PyObject* py_looks(PyObject*, PyObject* value) {
  for (auto& one : seen) one = nullptr;
  is_looking = PyObject_IsTrue(value);
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace opstep
