// Storages that a recorded tensor has, and copies of what they held before an op wrote to them.
//
// A copy is good for all times up to that of the write, back to the copy before it; after the last
// one, the storage itself is what was. Only what nobody but PyTorch's ops can write is known.
#pragma once
#include <ATen/core/Tensor.h>

#include "tensors.h"

extern Shared shared;

bool follows_storage(void* storage);
uint64_t note_storage(void* storage);
void release_storage(uint64_t number);
void trim_storages(uint64_t oldest);
void recount_storage(uint64_t number);
void recount_some_storages();

void before_write(c10::StorageImpl* storage, size_t written);  // bytes
void hand_out(c10::StorageImpl* storage);  // its memory, to code that is not PyTorch's
void hand_back(c10::StorageImpl* storage);
void watch_writes();                       // from now on `before_write` is called
void drop_out(c10::DeviceType type);       // all storages of a kind of device may be written unseen

struct Held {
  c10::Storage storage;  // null: it is not there any more
  bool is_known = false;
};
Held storage_at(uint64_t number, uint64_t time);
size_t count_copies(uint64_t* dropped);
