#include "log.h"

#include <algorithm>

std::deque<Chunk*> chunks;
std::unordered_map<uint64_t, Frame> frames;
std::unordered_map<void*, Activation*> activations;
std::vector<Node*> left_pending;
uint64_t dropped_events, step_number = 1;
static size_t after_last_trim, frames_after_last_trim;

Chunk* new_chunk() {
  Chunk* c = new Chunk{chunks.empty() ? 0 : chunks.back()->id + 1};
  c->before = kept_bytes;
  chunks.push_back(c);
  return c;
}

Time oldest() {
  for (Chunk* c : chunks)
    if (!c->events.empty()) return c->events.front().time;
  return now;
}

// Copies before an op writes are made on any thread, so their bytes are counted apart.
void share(bool is_hot) {
  static size_t counted = 0;
  if (!tensor_api) return;
  Shared& s = *tensor_api->shared;
  size_t bytes = s.bytes, most = limits.memory;
  kept_bytes += bytes - counted;
  counted = bytes;
  size_t others = kept_bytes - bytes;
  s.now = now;
  s.is_hot = is_hot;
  s.memory = most;
  s.room = most > others ? most - others : 0;
  s.period = step_number + now / 8192;
}

// `value` is given to the chunk.
void log_change(Chunk* c, uint32_t slot, Ref value) {
  c->changes.push_back(SlotChange{slot, value});
  size_t cost = sizeof(SlotChange) + weight(value);
  c->cost += cost;
  kept_bytes += cost;
}

// A ring has all slots of each turn, since turns before are overwritten.
void log_hot(Activation* a, uint32_t line, int lasti) {
  Code* c = a->code;
  if (c->ring.empty()) {
    c->ring.resize(limits.ring);
    c->values.assign(limits.ring * c->size, Ref{});
    kept_bytes += limits.ring * (sizeof(HotEvent) + c->size * sizeof(Ref));
  }
  size_t turn = c->turn;
  if (++c->turn == c->ring.size()) c->turn = 0;
  c->ring[turn] = HotEvent{now, a->id, line, lasti};
  Ref* kept = c->values.data() + turn * c->size;
  for (int i = 0; i < c->size; i++) {
    Ref v = a->slots[i];
    if (v.bits == kept[i].bits) continue;
    if (v && !v.is_node()) Py_INCREF(v.atom());
    kept_bytes += weight_over_number(v) - weight_over_number(kept[i]);
    release(kept[i]);
    kept[i] = v;
  }
}

static void drop_chunk() {
  Chunk* c = chunks.front();
  chunks.pop_front();
  dropped_events += c->events.size();
  for (auto& change : c->changes) release(change.value);
  kept_bytes -= c->cost;
  delete c;
}

// Of events and calls that are still kept.
static void mark_all(Time from) {
  std::unordered_map<uint64_t, Frame> known;
  known.swap(frames);
  auto keep = [&](uint64_t id) {
    for (; id && !frames.count(id); id = frames[id].parent) {
      auto found = known.find(id);
      if (found == known.end()) return;
      frames.insert(*found);
    }
  };
  for (Chunk* c : chunks) {
    for (auto& e : c->events) keep(e.frame);
    for (auto& change : c->changes) mark(change.value);
  }
  for (Code* c : codes)
    for (size_t k = 0; k < c->ring.size(); k++) {
      if (!c->ring[k].time || c->ring[k].time < from) continue;
      keep(c->ring[k].frame);
      for (int i = 0; i < c->size; i++) mark(c->values[k * c->size + i]);
    }
  for (auto& [frame, a] : activations) {
    keep(a->id);
    for (Ref r : a->slots) mark(r);
    for (Node* n : a->pending) mark(ref_to(n));
  }
  for (Node* n : left_pending) mark(ref_to(n));
  for (auto& [id, f] : frames) {
    if (f.globals) mark(ref_to(f.globals));
    if (f.locals) mark(ref_to(f.locals));
  }
}

static void forget_old_turns(Time from) {
  for (Code* c : codes)
    for (size_t k = 0; k < c->ring.size(); k++) {
      if (c->ring[k].time >= from) continue;
      for (int i = 0; i < c->size; i++) {
        Ref& v = c->values[k * c->size + i];
        kept_bytes -= weight_over_number(v);
        release(v);
        v = Ref{};
      }
      c->ring[k] = HotEvent{};
    }
}

static void collect() {
  Time from = oldest();
  forget_old_turns(from);
  mark_all(from);
  mark_deep();
  sweep(from);
}

static void forget_pending() {  // what would be looked at belongs to events that are gone
  for (auto& [frame, a] : activations) a->pending.clear();
  left_pending.clear();
}

// What nothing refers to goes first, then the oldest chunks, in the end all of them.
void keep_to_memory() {
  size_t most = limits.memory, step = most / 16;
  bool many_frames = frames.size() > 2 * frames_after_last_trim + 65536;
  bool is_short = tensor_api && tensor_api->shared->is_short.exchange(false);
  bool is_full = kept_bytes >= most && kept_bytes >= after_last_trim + step;
  if (!many_frames && !is_full && !is_short) return;
  collect();
  auto is_over = [&] {
    return kept_bytes + step > most || (is_short && tensor_api->shared->room < most / 4);
  };
  while (is_over() && chunks.size() > 1) {
    drop_chunk();
    collect();
  }
  if (kept_bytes + step > most) {
    new_chunk();
    drop_chunk();
    forget_pending();
    collect();
  }
  after_last_trim = kept_bytes;
  frames_after_last_trim = frames.size();
}
