#include "storages.h"

#include <dlfcn.h>

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <mutex>
#include <unordered_map>

Shared shared;

namespace {

struct Copy {
  uint64_t until;
  at::Tensor bytes;  // undefined: not known
};

struct Known {
  c10::Storage live;  // held
  uint64_t from;      // when it was noted
  int users = 0;
  bool is_counted = false;         // nobody else has it
  bool was_hot = false;            // written in a hot line, and not since
  std::deque<Copy> copies;
  uint64_t period = 0, copied = 0;  // bytes in this period
};

// Memory that was given to code which writes it without ops: for how many arrays, or for good.
struct Handed {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int64_t count;
};

struct All {
  std::mutex mutex;
  bool is_watching = false;
  uint64_t last = 0, turn = 0, dropped = 0;
  std::unordered_map<uint64_t, Known> known;  // by number
  std::unordered_map<const void*, uint64_t> numbers;
  std::unordered_map<const void*, Handed> handed;
  std::deque<std::pair<uint64_t, uint64_t>> order;  // (number, until) of copies, the oldest first
};

All& all() {  // to the end of the process, when devices may be gone
  static All* one = new All;
  return *one;
}

using Lock = std::lock_guard<std::mutex>;

// --- who may write -------------------------------------------------------------------------------

bool is_own(const c10::StorageImpl* s) {  // memory that PyTorch's allocator gave it, not NumPy's
  c10::Allocator* allocator = c10::GetAllocator(s->device_type());
  c10::DeleterFnPtr deleter = s->data_ptr().get_deleter();
  return !s->nbytes() || (deleter && allocator && deleter == allocator->raw_deleter());
}

bool is_handed_out(const c10::StorageImpl* s) {
  auto found = all().handed.find(s);
  return found != all().handed.end() && !found->second.storage.expired();
}

bool is_followed(const c10::StorageImpl* s) {
  return all().is_watching && is_own(s) && !is_handed_out(s);
}

bool is_known_now(const Known& k) { return is_followed(k.live.unsafeGetStorageImpl()); }

// --- copies --------------------------------------------------------------------------------------

size_t size_of(const Copy& c) { return c.bytes.defined() ? c.bytes.nbytes() : 0; }

void give_up(Copy& c) {
  shared.bytes -= size_of(c);
  c.bytes = at::Tensor();
}

bool drop_oldest() {
  All& a = all();
  while (!a.order.empty()) {
    auto [number, until] = a.order.front();
    a.order.pop_front();
    auto found = a.known.find(number);
    if (found == a.known.end()) continue;
    for (Copy& c : found->second.copies)
      if (c.until == until && c.bytes.defined()) {
        give_up(c);
        a.dropped++;
        return true;
      }
  }
  return false;
}

// Room is made of older copies. A loop that writes elements one by one would copy the storage for
// each of them: in a period at most a quarter of the memory is spent so.
bool has_room(Known& k, size_t size, size_t written) {
  size_t quarter = shared.memory / 4;
  if (k.period != shared.period) {
    k.period = shared.period;
    k.copied = 0;
  }
  if (size > quarter || (k.copied + size > quarter && 4 * written < size)) return false;
  while (shared.bytes + size > shared.room) {
    if (shared.room < quarter) shared.is_short = true;
    if (!drop_oldest()) return false;
  }
  k.copied += size;
  return true;
}

bool is_capturing(c10::Device device) {  // a copy would be part of the graph
  if (!device.is_cuda()) return false;
  using Asks = int (*)(void*, int*);  // of the driver: not all versions of PyTorch can be asked
  static void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  static Asks asks = lib ? reinterpret_cast<Asks>(dlsym(lib, "cuStreamIsCapturing")) : nullptr;
  c10::impl::VirtualGuardImpl guard(device.type());
  int found = 0;
  return !asks || asks(guard.getStream(device).native_handle(), &found) || found;
}

at::Tensor as_bytes(const c10::Storage& s) {
  auto options = at::TensorOptions().dtype(at::kByte).device(s.device());
  at::Tensor t = at::empty({0}, options);
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(s);
  t.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(s.nbytes())});
  return t;
}

// On the same device, in the order of the stream on which the op will run.
at::Tensor copied(const c10::Storage& s) {
  using c10::DispatchKey;
  const c10::DispatchKeySet modes(
      {DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Fake,
       DispatchKey::Functionalize, DispatchKey::PreDispatch});
  auto excluded = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                  c10::functorch_transforms_ks | modes;
  c10::impl::ForceDispatchKeyGuard guard(c10::DispatchKeySet(DispatchKey::BackendSelect), excluded);
  at::DisableRecordFunctionGuard unprofiled;
  try {
    if (is_capturing(s.device())) return at::Tensor();
    at::Tensor source = as_bytes(s), made = at::empty(source.sizes(), source.options());
    return made.copy_(source);
  } catch (const std::exception&) {  // the device has no memory left
    return at::Tensor();
  }
}

void add(Known& k, uint64_t number, Copy&& copy) {
  if (!copy.bytes.defined() && !k.copies.empty() && !k.copies.back().bytes.defined()) {
    k.copies.back().until = copy.until;
    return;
  }
  if (copy.bytes.defined()) all().order.emplace_back(number, copy.until);
  shared.bytes += size_of(copy);
  k.copies.push_back(std::move(copy));
}

void save(Known& k, uint64_t number, size_t written) {
  uint64_t t = shared.now;
  if (!k.copies.empty() && k.copies.back().until >= t) return;
  bool is_hot = shared.is_hot, is_first = !is_hot || !k.was_hot;
  k.was_hot = is_hot;
  size_t size = k.live.nbytes();
  at::Tensor bytes;
  if (is_first && is_known_now(k) && has_room(k, size, written)) bytes = copied(k.live);
  add(k, number, {t, bytes});
}

Known* find(const void* storage, uint64_t* number) {
  auto found = all().numbers.find(storage);
  if (found == all().numbers.end()) return nullptr;
  *number = found->second;
  return &all().known[found->second];
}

// --- what nobody else has ------------------------------------------------------------------------

void recount(Known& k, size_t others) {
  bool is_counted = k.live.use_count() <= 1 + others;
  if (is_counted == k.is_counted) return;
  k.is_counted = is_counted;
  if (is_counted)
    shared.bytes += k.live.nbytes();
  else
    shared.bytes -= k.live.nbytes();
}

}  // namespace

// --- the recorder's side, with Python's lock -----------------------------------------------------

bool follows_storage(void* storage) {
  Lock lock(all().mutex);
  return is_followed(static_cast<c10::StorageImpl*>(storage));
}

uint64_t note_storage(void* storage) {
  All& a = all();
  Lock lock(a.mutex);
  uint64_t number;
  Known* k = find(storage, &number);
  if (!k) {
    number = a.numbers[storage] = ++a.last;
    k = &a.known[number];
    auto impl = static_cast<c10::StorageImpl*>(storage);
    k->live = c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
    k->from = shared.now;
  }
  k->users++;
  return number;
}

void release_storage(uint64_t number) {
  All& a = all();
  Known gone;  // destroyed without the mutex
  Lock lock(a.mutex);
  auto found = a.known.find(number);
  if (found == a.known.end() || --found->second.users) return;
  for (Copy& c : found->second.copies) give_up(c);
  if (found->second.is_counted) shared.bytes -= found->second.live.nbytes();
  a.numbers.erase(found->second.live.unsafeGetStorageImpl());
  std::swap(gone, found->second);
  a.known.erase(found);
}

void trim_storages(uint64_t oldest) {
  All& a = all();
  Lock lock(a.mutex);
  for (auto& [number, k] : a.known)
    while (!k.copies.empty() && k.copies.front().until < oldest) {
      give_up(k.copies.front());
      k.copies.pop_front();
    }
  while (!a.order.empty() && a.order.front().second < oldest) a.order.pop_front();
  for (auto it = a.handed.begin(); it != a.handed.end();)
    it = it->second.storage.expired() ? a.handed.erase(it) : std::next(it);
}

void recount_storage(uint64_t number) {
  Lock lock(all().mutex);
  auto found = all().known.find(number);
  if (found != all().known.end()) recount(found->second, 1);
}

void recount_some_storages() {
  All& a = all();
  Lock lock(a.mutex);
  for (int i = 0; i < 32 && !a.known.empty(); i++) {
    size_t bucket = a.turn++ % a.known.bucket_count();
    for (auto it = a.known.begin(bucket); it != a.known.end(bucket); ++it) recount(it->second, 0);
  }
}

Held storage_at(uint64_t number, uint64_t time) {
  All& a = all();
  Lock lock(a.mutex);
  auto found = a.known.find(number);
  if (found == a.known.end()) return {};
  Known& k = found->second;
  for (Copy& c : k.copies) {
    if (c.until < time) continue;
    if (c.bytes.defined()) return {c.bytes.storage(), time >= k.from};
    return {k.live, false};
  }
  return {k.live, time >= k.from && is_known_now(k)};
}

size_t count_copies(uint64_t* dropped) {
  Lock lock(all().mutex);
  *dropped = all().dropped;
  size_t count = 0;
  for (auto& [number, k] : all().known)
    for (Copy& c : k.copies) count += c.bytes.defined();
  return count;
}

// --- what is written, on any thread --------------------------------------------------------------

void before_write(c10::StorageImpl* s, size_t written) {
  Lock lock(all().mutex);
  uint64_t number;
  if (Known* k = find(s, &number)) save(*k, number, written);
}

void hand_out(c10::StorageImpl* s) {
  All& a = all();
  Lock lock(a.mutex);
  uint64_t number;
  if (Known* k = find(s, &number)) save(*k, number, s->nbytes());
  auto found = a.handed.find(s);
  if (found != a.handed.end() && found->second.storage.expired()) {
    a.handed.erase(found);
    found = a.handed.end();
  }
  auto held = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(s);
  if (found != a.handed.end())
    found->second.count++;
  else
    a.handed.emplace(s, Handed{c10::weak_intrusive_ptr<c10::StorageImpl>(held), 1});
}

void hand_back(c10::StorageImpl* s) {
  All& a = all();
  Lock lock(a.mutex);
  auto found = a.handed.find(s);
  if (found == a.handed.end() || --found->second.count) return;
  a.handed.erase(found);
  uint64_t number;
  if (Known* k = find(s, &number)) add(*k, number, {shared.now, at::Tensor()});
}

void watch_writes() {
  All& a = all();
  Lock lock(a.mutex);
  for (auto& [number, k] : a.known)  // which may have been written before
    if (!a.is_watching) add(k, number, {shared.now, at::Tensor()});
  a.is_watching = true;
}

void drop_out(c10::DeviceType type) {
  All& a = all();
  Lock lock(a.mutex);
  for (auto& [number, k] : a.known)
    if (k.live.device_type() == type) add(k, number, {shared.now, at::Tensor()});
}
