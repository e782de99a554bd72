// Where a line stands in a loop, by the log as it is: a stop needs no index of all events.
#include <algorithm>
#include <unordered_set>

#include "answers.h"
#include "log.h"

static bool is_line(const Event& e, uint64_t frame) {
  return e.line && (!frame || e.frame == frame);
}

// last(position, frame or 0) -> (time, frame, line) of the last event until then, or None
PyObject* last_event(PyObject*, PyObject* args) {
  unsigned long long t, frame;
  if (!PyArg_ParseTuple(args, "KK", &t, &frame)) return nullptr;
  for (auto c = chunks.rbegin(); c != chunks.rend(); ++c)
    for (auto e = (*c)->events.rbegin(); e != (*c)->events.rend(); ++e)
      if (e->time <= t && is_line(*e, frame))
        return Py_BuildValue("KKI", (unsigned long long)e->time, (unsigned long long)e->frame,
                             e->line);
  Py_RETURN_NONE;
}

struct Loop {
  uint64_t frame;
  unsigned first, last;  // lines
  int entry, body;       // first instructions: of what it loops over, of its body

  bool is_left(const Event& e) const { return e.lasti == entry || e.line < first || e.line > last; }
};

// Whether lines of it are missing from the log, as they are hot.
static bool has_gaps(Code* code, unsigned first, unsigned last) {
  for (unsigned line = first; line <= last; line++) {
    unsigned i = line - code->first;
    if (i < code->was_hot.size() && code->was_hot[i]) return true;
  }
  return false;
}

// Adds the starts of turns until `t`, the last first; whether the loop's entry was found.
static bool turns_before(const Loop& loop, Time t, std::vector<Time>& found) {
  for (auto c = chunks.rbegin(); c != chunks.rend(); ++c)
    for (auto e = (*c)->events.rbegin(); e != (*c)->events.rend(); ++e) {
      if (e->time > t || !is_line(*e, loop.frame)) continue;
      if (loop.is_left(*e)) return true;
      if (e->lasti == loop.body) found.push_back(e->time);
    }
  return false;
}

// Adds those after `t`; whether the loop's end was found: by a line after it, or of a caller.
static bool turns_after(const Loop& loop, Time t, std::vector<Time>& found) {
  std::unordered_set<uint64_t> callers;
  Frame& frame = frames[loop.frame];
  if (!frame.code->is_generator)
    for (uint64_t id = frame.parent; id && frames.count(id); id = frames[id].parent)
      callers.insert(id);
  for (Chunk* c : chunks) {
    if (c->events.empty() || c->events.back().time <= t) continue;
    for (Event& e : c->events) {
      if (e.time <= t || !e.line) continue;
      if (callers.count(e.frame)) return true;
      if (e.frame != loop.frame) continue;
      if (loop.is_left(e)) return true;
      if (e.lasti == loop.body) found.push_back(e.time);
    }
  }
  return false;
}

// turns(frame, position, first line, last line, entry, body) -> (starts of the turns of the run of
// the loop in which the position is, whether it has ended), or None where that is not known
PyObject* turns_of(PyObject*, PyObject* args) {
  Loop loop;
  unsigned long long frame, t;
  if (!PyArg_ParseTuple(args, "KKIIii", &frame, &t, &loop.first, &loop.last, &loop.entry,
                        &loop.body))
    return nullptr;
  loop.frame = frame;
  auto known = frames.find(frame);
  std::vector<Time> found;
  if (known == frames.end() || has_gaps(known->second.code, loop.first, loop.last)) Py_RETURN_NONE;
  if (!turns_before(loop, t, found)) Py_RETURN_NONE;
  std::reverse(found.begin(), found.end());
  bool has_ended = turns_after(loop, t, found);
  PyObject* list = PyList_New(found.size());
  for (size_t i = 0; i < found.size(); i++)
    PyList_SET_ITEM(list, i, PyLong_FromUnsignedLongLong(found[i]));
  return Py_BuildValue("NO", list, has_ended ? Py_True : Py_False);
}
