// The launches of a remembered call, into which the addresses of a call's tensors are filled.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "call_key.h"

namespace repeat {

struct Place {
  Py_ssize_t word, number;
  int64_t offset;
};

struct Step {
  PyObject* entry_point;
  std::vector<uint64_t> words;
  std::vector<Place> places;
};

struct Apart {
  Py_ssize_t written, other;
  int64_t size, other_size;
};

struct Together {
  Py_ssize_t written, other;
  int64_t distance;
};

// The launches of a call without addresses, and where its tensors may be.
struct Remembered {
  std::vector<Step> steps;
  std::vector<Py_ssize_t> aligned;
  std::vector<Apart> apart;
  std::vector<Together> together;
  std::vector<int64_t> parts;  // where those of the last new tensor begin
  PyObject *made = nullptr, *scratch = nullptr;  // forms of new tensors, and a function or None
  Py_ssize_t num_given = 0, num_made = 0;

  ~Remembered() {
    for (Step& step : steps) Py_DECREF(step.entry_point);
    Py_XDECREF(made);
    Py_XDECREF(scratch);
  }
  // False, with a Python error, if a step or a rule has the number of no tensor.
  bool is_number(Py_ssize_t number, Py_ssize_t least, Py_ssize_t end) const {
    if (number >= least && number < end) return true;
    PyErr_SetString(PyExc_ValueError, "no tensor has this number");
    return false;
  }
};

constexpr char kRememberedName[] = "deep_gemm_rocm launches";
constexpr int kMostMade = 16;
constexpr Py_ssize_t kScratch = -1;  // in place of a tensor's number
constexpr uint64_t kAlignment = 16;

// Calls `add` for each element of a tuple or list; false with a Python error.
template <typename Add>
bool for_each(PyObject* sequence, Add add) {
  const Py_ssize_t size = PySequence_Size(sequence);
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* element = PySequence_GetItem(sequence, i);
    const bool added = element && add(element);
    Py_XDECREF(element);
    if (!added) return false;
  }
  return size >= 0;
}

// Reads a tuple of as many numbers; false with a Python error.
template <int count>
bool read_numbers(PyObject* tuple, int64_t (&numbers)[count]) {
  if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
    PyErr_Format(PyExc_TypeError, "%R is no tuple of %d numbers", tuple, count);
    return false;
  }
  for (int i = 0; i < count; i++) numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
  return !PyErr_Occurred();
}

inline bool add_step(Remembered& remembered, PyObject* object) {
  PyObject *entry_point, *places;
  const char* words;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(object, "Oy#O", &entry_point, &words, &size, &places)) return false;
  const auto* begin = reinterpret_cast<const uint64_t*>(words);
  Py_INCREF(entry_point);
  remembered.steps.push_back({entry_point, {begin, begin + size / sizeof *begin}, {}});
  Step& step = remembered.steps.back();
  const Py_ssize_t count = PySequence_Size(places);
  if (count < 0) return false;
  step.places.reserve(count);
  return for_each(places, [&](PyObject* of_place) {
    int64_t numbers[3];
    if (!read_numbers(of_place, numbers)) return false;
    auto [word, number, offset] = numbers;
    if (word < 0 || word >= int64_t(step.words.size())) {
      PyErr_SetString(PyExc_ValueError, "a place is outside of the arguments");
      return false;
    }
    const int64_t end = remembered.num_given + remembered.num_made;
    const bool is_part = number >= end && number - end < int64_t(remembered.parts.size());
    if (is_part) {
      offset += remembered.parts[number - end];
      number = end - 1;
    }
    if (!remembered.is_number(number, remembered.scratch != Py_None ? kScratch : 0, end)) return false;
    step.places.push_back({Py_ssize_t(word), Py_ssize_t(number), offset});
    return true;
  });
}

inline bool add_rules(Remembered& remembered, PyObject* aligned, PyObject* apart, PyObject* together) {
  const auto is_given = [&](Py_ssize_t number) { return remembered.is_number(number, 0, remembered.num_given); };
  const auto add_aligned = [&](PyObject* object) {
    remembered.aligned.push_back(PyLong_AsSsize_t(object));
    return is_given(remembered.aligned.back());
  };
  const auto add_apart = [&](PyObject* object) {
    int64_t numbers[4];
    if (!read_numbers(object, numbers)) return false;
    const auto [written, other, size, other_size] = numbers;
    remembered.apart.push_back({Py_ssize_t(written), Py_ssize_t(other), size, other_size});
    return is_given(written) && is_given(other);
  };
  const auto add_together = [&](PyObject* object) {
    int64_t numbers[3];
    if (!read_numbers(object, numbers)) return false;
    const auto [written, other, distance] = numbers;
    remembered.together.push_back({Py_ssize_t(written), Py_ssize_t(other), distance});
    return is_given(written) && is_given(other);
  };
  return for_each(aligned, add_aligned) && for_each(apart, add_apart) && for_each(together, add_together);
}

inline bool is_allowed(const Remembered& remembered, const uint64_t* addresses) {
  for (Py_ssize_t i = 0; i < remembered.num_given; i++)
    if (addresses[i] == 0) return false;
  for (const Py_ssize_t number : remembered.aligned)
    if (addresses[number] % kAlignment) return false;
  for (const Apart& rule : remembered.apart) {
    const auto distance = int64_t(addresses[rule.other] - addresses[rule.written]);
    if (distance < rule.size && -distance < rule.other_size) return false;
  }
  for (const Together& rule : remembered.together)
    if (int64_t(addresses[rule.other] - addresses[rule.written]) != rule.distance) return false;
  return true;
}

// Makes the new tensors of a call, appends them to its tensors and their addresses to the others.
inline Outcome make(const Remembered& remembered, PyObject* tensors, uint64_t* addresses) {
  for (Py_ssize_t i = 0; i < remembered.num_made; i++) {
    DlTensor tensor;
    PyObject* made = make_one(PyTuple_GetItem(remembered.made, i), tensor);
    const bool is_added = made && PyList_Append(tensors, made) == 0;
    Py_XDECREF(made);
    if (!is_added) return Outcome::kError;
    const uint64_t address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
    if (!address) return Outcome::kUnusual;
    addresses[remembered.num_given + i] = address;
  }
  return Outcome::kDone;
}

// Entry point and arguments.
inline PyObject* filled_in(const Step& step, const uint64_t* addresses, uint64_t scratch) {
  PyObject* bytes = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(step.words.data()),
                                              step.words.size() * sizeof step.words[0]);
  if (!bytes) return nullptr;
  auto* words = reinterpret_cast<uint64_t*>(PyBytes_AsString(bytes));
  for (const Place& place : step.places)
    words[place.word] = (place.number == kScratch ? scratch : addresses[place.number]) + place.offset;
  PyObject* launch = PyTuple_Pack(2, step.entry_point, bytes);
  Py_DECREF(bytes);
  return launch;
}

// Returns the launches, and appends new tensors to `tensors`; None if the given ones break a rule of `Remembered`.
//
// `addresses` has the addresses of the given tensors, and room for those of the new ones.
inline PyObject* filled_in(const Remembered& remembered, PyObject* tensors, uint64_t* addresses) {
  if (!is_allowed(remembered, addresses)) Py_RETURN_NONE;
  const Outcome outcome = make(remembered, tensors, addresses);
  if (outcome == Outcome::kError) return nullptr;
  if (outcome == Outcome::kUnusual) Py_RETURN_NONE;
  uint64_t scratch = 0;
  if (remembered.scratch != Py_None) {
    PyObject* address = PyObject_CallFunctionObjArgs(remembered.scratch, PyList_GetItem(tensors, 0), nullptr);
    if (!address) return nullptr;
    scratch = PyLong_AsUnsignedLongLong(address);
    Py_DECREF(address);
    if (PyErr_Occurred()) return nullptr;
  }
  PyObject* launches = PyTuple_New(remembered.steps.size());
  for (size_t i = 0; launches && i < remembered.steps.size(); i++) {
    PyObject* launch = filled_in(remembered.steps[i], addresses, scratch);
    if (launch) {
      PyTuple_SetItem(launches, i, launch);
    } else {
      Py_DECREF(launches);
      return nullptr;
    }
  }
  return launches;
}

// filler(steps, number of given tensors, aligned, apart, together, made, parts, scratch): a capsule for `recall` and
// `fill`
inline PyObject* filler(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 8 || !PyTuple_CheckExact(given[5])) {
    PyErr_SetString(PyExc_TypeError, "filler takes steps, a number, three kinds of rules, forms, parts and a function");
    return nullptr;
  }
  auto remembered = std::make_unique<Remembered>();
  remembered->num_given = PyLong_AsSsize_t(given[1]);
  Py_INCREF(remembered->made = given[5]);
  remembered->num_made = PyTuple_Size(given[5]);
  Py_INCREF(remembered->scratch = given[7]);
  if (remembered->num_given < 0 || remembered->num_given > kMostTensors || remembered->num_made > kMostMade) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "too many tensors");
    return nullptr;
  }
  const auto add_part = [&](PyObject* begin) {
    remembered->parts.push_back(PyLong_AsLongLong(begin));
    return !PyErr_Occurred();
  };
  const auto add = [&](PyObject* step) { return add_step(*remembered, step); };
  if (!for_each(given[6], add_part) || !for_each(given[0], add)) return nullptr;
  if (!add_rules(*remembered, given[2], given[3], given[4])) return nullptr;
  const auto free = [](PyObject* capsule) {
    delete static_cast<Remembered*>(PyCapsule_GetPointer(capsule, kRememberedName));
  };
  PyObject* capsule = PyCapsule_New(remembered.get(), kRememberedName, free);
  if (capsule) remembered.release();
  return capsule;
}

// fill(capsule, tensors, addresses): the launches, and appends new tensors; None if the tensors may not be there
inline PyObject* fill(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !PyCapsule_IsValid(given[0], kRememberedName) || !PyList_Check(given[1])) {
    PyErr_SetString(PyExc_TypeError, "fill takes a capsule, tensors and their addresses");
    return nullptr;
  }
  const auto& remembered = *static_cast<Remembered*>(PyCapsule_GetPointer(given[0], kRememberedName));
  if (PyList_Size(given[1]) != remembered.num_given || PySequence_Size(given[2]) != remembered.num_given) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "wrong number of tensors");
    return nullptr;
  }
  uint64_t addresses[kMostTensors + kMostMade];
  uint64_t* next = addresses;
  const bool are_read = for_each(given[2], [&](PyObject* address) {
    *next++ = PyLong_AsUnsignedLongLong(address);
    return !PyErr_Occurred();
  });
  return are_read ? filled_in(remembered, given[1], addresses) : nullptr;
}

}  // namespace repeat
