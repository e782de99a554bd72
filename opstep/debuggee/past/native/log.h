// The log of lines: events in chunks, of which the oldest are dropped, and rings for hot lines.
#pragma once
#include <unordered_map>

#include "kept.h"

struct Line {
  bool acts = false;              // it may change a container
  std::vector<int> slots;         // that it reads
  std::vector<PyObject*> names;   // of globals, that it reads
};

struct HotEvent {
  Time time;
  uint64_t frame;
  uint32_t line;
  int lasti;
};

struct Code {
  PyCodeObject* code;
  bool is_user, is_generator, is_module;
  int size, first;  // slots; first line
  uint32_t step = 0;
  std::vector<uint8_t> kinds;  // of slots
  std::vector<Line> lines;     // from the first
  std::vector<uint32_t> hits;  // in this step
  std::vector<bool> was_hot;
  std::vector<HotEvent> ring;
  std::vector<Ref> values;     // `size` for each event of the ring
  size_t turn = 0;             // of the ring, the next

  Line* at(uint32_t line) {
    uint32_t i = line - first;
    return i < lines.size() ? &lines[i] : nullptr;
  }
};

struct Event {
  Time time;
  uint64_t frame;
  uint32_t line;  // 0: a call on a line, after it has changed a slot
  int lasti;
  uint32_t first;  // of its changes
};

struct SlotChange {
  uint32_t slot;
  Ref value;
};

struct Chunk {
  uint64_t id;
  size_t cost = 0, before = 0;  // its own bytes; all bytes when it began
  std::vector<Event> events;
  std::vector<SlotChange> changes;
};

struct Frame {  // a call
  uint64_t parent;
  Code* code;
  Node *globals, *locals;
  Time start;
};

struct Activation {  // a call that has not returned
  uint64_t id, parent;
  Code* code;
  void* frame;
  Activation* up;
  std::vector<PyObject*> raw;
  std::vector<Ref> slots;
  std::vector<Node*> pending;  // named on the line that runs
  uint64_t dirty = 0;          // slots that changed in hot lines; the last bit is for all from 63
  uint64_t chunk = ~0ull;
  int nodes = 0;
  bool has_text = false, has_placeholder = false, saw_buffer = false;
  Node *globals = nullptr, *locals = nullptr;
};

extern std::deque<Chunk*> chunks;
extern std::unordered_map<uint64_t, Frame> frames;
extern std::unordered_map<void*, Activation*> activations;
extern std::vector<Code*> codes;
extern std::vector<Node*> left_pending;  // of a call that returned in mid-line
extern uint64_t dropped_events, step_number;

// log.cpp
Chunk* new_chunk();
void log_change(Chunk* c, uint32_t slot, Ref value);
void log_hot(Activation* a, uint32_t line, int lasti);
void keep_to_memory();
Time oldest();  // time of the first event that is kept

// lines.cpp
void on_line(Activation* a, void* frame, uint32_t line, bool is_call);
void on_call(void* frame, Code* code, bool is_fresh);
void on_return(void* frame, Code* code);
Activation* activation_of(void* frame, Code* code);
uint32_t* hits_of(Code* code, uint32_t line);
void look_at_all();

// codes.cpp
Code* code_of(PyCodeObject* code);
extern PyObject *is_user, *lines_of;
