// What ran and when, for a timeline: by numbers that Python gives to ops as they are met.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <ctime>

#include "calls.h"
#include "stacks.h"

namespace opstep {
namespace {

constexpr size_t MOST_RAN = 1 << 13;  // from which on Python takes them

// Times in ns of CLOCK_MONOTONIC. `number`: the address of a result of one element, or 0.
struct Ran {
  int64_t thread, op, began, ended, number;
};

std::atomic<bool> is_recorded{false};
std::atomic<bool> has_values{false};  // whether Python gets the results of each op
PyObject *on_met, *on_number, *on_gave;
std::mutex ran_mutex;
ska::flat_hash_map<uint64_t, int64_t> met;  // numbers of ops, by all that tells them apart
std::vector<Ran> ran;

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

int64_t number_in(const Arguments& results) {
  if (results.size() != 1 || !results[0].isTensor() || !results[0].toTensor().defined()) return 0;
  const at::Tensor& t = results[0].toTensor();
  auto keys = t.key_set();
  bool is_plain = keys.has_all(c10::DispatchKeySet(c10::DispatchKey::CPU)) && !keys.has(c10::DispatchKey::Python);
  return is_plain && t.has_storage() && t.numel() == 1 ? reinterpret_cast<int64_t>(t.const_data_ptr()) : 0;
}

// Where it ran; of a backward also the ops near the number of its node, one of which made that.
uint64_t key_of(Thread& thread, const Facts& facts) {
  if (!thread.stack) thread.stack = stack_now();
  auto word = [](const void* p) { return reinterpret_cast<uint64_t>(p); };
  uint64_t key = mixed(mixed(mixed(word(&facts), thread.stack), word(thread.module())), thread.updating);
  Node node = current_node();
  if (node.number < 0) return key;
  key = mixed(key, word(node.type));
  for (bool is_late : {false, true})
    if (const Made* made = made_of(node.thread, node.number, is_late))
      key = mixed(mixed(key, made->stack), word(made->module));
  return key;
}

// The results of an op; of one that has none, what it wrote.
PyObject* given_by(const Facts& facts, const Arguments& arguments, const Arguments& results) {
  PyObject* found = PyList_New(0);
  auto add = [found](const at::Tensor& t) {
    PyObject* item = THPVariable_Wrap(t);
    PyList_Append(found, item);
    Py_DECREF(item);
  };
  for (const auto& v : results) for_tensors(v, add);
  if (!PyList_GET_SIZE(found))
    for (int k : facts.writes) for_tensors(arguments[k], add);
  return found;
}

// Python is asked for the number of what it has not met.
int64_t number_of(uint64_t key, Thread& thread, const Facts& facts, const Arguments& arguments, const Arguments& results) {
  {
    std::lock_guard<std::mutex> lock(ran_mutex);
    auto found = met.find(key);
    if (found != met.end()) return found->second;
  }
  Gil gil;
  PyObject* modules = PyList_New(0);
  for (void* module : thread.modules) PyList_Append(modules, static_cast<PyObject*>(module));
  PyObject* found = called(on_met, Py_BuildValue("(ssNNN)", facts.name.c_str(), facts.overload.c_str(), given_to(facts, arguments),
                                                 given_by(facts, arguments, results), modules));
  int64_t number = PyLong_AsLongLong(found);
  Py_DECREF(found);
  std::lock_guard<std::mutex> lock(ran_mutex);
  return met[key] = number;
}

void note_ran(Thread& thread, const Facts& facts, const Arguments& arguments, const Arguments& results, int64_t began) {
  int64_t ended = now_ns();
  if (facts.reads) {
    Gil gil;
    call(on_number, Py_BuildValue("(NN)", to_python(arguments[0], c10::TypeKind::AnyType), to_python(results[0], c10::TypeKind::AnyType)));
  }
  if (facts.skipped) return;
  int64_t number = number_of(key_of(thread, facts), thread, facts, arguments, results);
  if (number < 0) return;  // a mark for profilers
  {
    std::lock_guard<std::mutex> lock(ran_mutex);
    if (!has_values && ran.size() < MOST_RAN)
      return ran.push_back({static_cast<int64_t>(thread.id), number, began, ended, number_in(results)});
  }
  Gil gil;
  call(on_gave, Py_BuildValue("(LLLLN)", static_cast<long long>(thread.id), static_cast<long long>(number),
                              static_cast<long long>(began), static_cast<long long>(ended), given_by(facts, arguments, results)));
}

}  // namespace
}  // namespace opstep
