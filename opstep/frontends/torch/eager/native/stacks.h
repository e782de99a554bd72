// Stacks of Python frames, each kept once.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <Python.h>

#include <c10/util/flat_hash_map.h>

#include <mutex>
#include <vector>

namespace opstep {
namespace {

constexpr size_t STACKS = 200000;  // different ones
constexpr int FRAMES = 128;        // of a stack

struct Frame {
  PyCodeObject* code;
  int instruction;
};

std::mutex stacks_mutex;
ska::flat_hash_map<uint64_t, uint32_t> stack_numbers;
std::vector<std::vector<Frame>> stacks(1);  // 0: none is known

uint64_t mixed(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0xD6E8FEB86659FD93ull;
  return h ^ (h >> 32);
}

// The number of this thread's stack of Python frames. The code objects are kept, no frames.
uint32_t stack_now() {
  if (!PyGILState_GetThisThreadState()) return 0;  // autograd's own threads have none
  PyGILState_STATE state = PyGILState_Ensure();
  Frame frames[FRAMES];
  int n = 0;
  uint64_t hash = 1469598103934665603ull;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame && n < FRAMES) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    Py_DECREF(code);  // the frame holds it
    frames[n] = {code, PyFrame_GetLasti(frame)};
    hash = mixed(mixed(hash, reinterpret_cast<uint64_t>(code)), frames[n++].instruction);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  uint32_t number = 0;
  {
    std::lock_guard<std::mutex> lock(stacks_mutex);
    auto found = stack_numbers.find(hash);
    if (found != stack_numbers.end()) {
      number = found->second;
    } else if (stacks.size() < STACKS) {
      for (int k = 0; k < n; ++k) Py_INCREF(frames[k].code);
      stacks.emplace_back(frames, frames + n);
      number = stack_numbers[hash] = static_cast<uint32_t>(stacks.size() - 1);
    }
  }
  PyGILState_Release(state);
  return number;
}

}  // namespace
}  // namespace opstep
