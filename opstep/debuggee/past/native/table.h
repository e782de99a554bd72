// A hash table from addresses, with linear probing: the recorder asks it at each line.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

template <class V>
class Table {
 public:
  struct Entry {
    void* first;
    V second;
  };
  std::vector<Entry> entries;  // those with `first`
  size_t size = 0;

  Table() { entries.assign(1024, Entry{nullptr, V()}); }

  V* get(void* p) {
    for (size_t i = home(p);; i = next(i)) {
      if (entries[i].first == p) return &entries[i].second;
      if (!entries[i].first) return nullptr;
    }
  }

  V& operator[](void* p) {
    if (V* found = get(p)) return *found;
    if (size * 2 >= entries.size()) grow();
    size_t i = home(p);
    while (entries[i].first) i = next(i);
    size++;
    entries[i].first = p;
    return entries[i].second;
  }

  void erase(void* p) {
    size_t i = home(p);
    while (entries[i].first != p) {
      if (!entries[i].first) return;
      i = next(i);
    }
    size--;
    size_t mask = entries.size() - 1;
    for (size_t j = next(i); entries[j].first; j = next(j))  // no hole on the way to an entry
      if (((j - home(entries[j].first)) & mask) >= ((j - i) & mask)) {
        entries[i] = entries[j];
        i = j;
      }
    entries[i] = Entry{nullptr, V()};
  }

 private:
  size_t home(void* p) const {
    return ((reinterpret_cast<uintptr_t>(p) >> 4) * 0x9E3779B97F4A7C15ull >> 20) &
           (entries.size() - 1);
  }
  size_t next(size_t i) const { return (i + 1) & (entries.size() - 1); }

  void grow() {
    std::vector<Entry> old(entries.size() * 2, Entry{nullptr, V()});
    old.swap(entries);
    size = 0;
    for (auto& e : old)
      if (e.first) (*this)[e.first] = e.second;
  }
};
