// Keys and arguments of calls that differ only in sizes; see families.py.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "remembered.h"

namespace repeat {

// A tensor in a key's words, as `describe_tensor` writes them. Strides follow the shape unless they follow from it.
struct DescribedTensor {
  int64_t *shape, *end, dims;

  const int64_t* strides() const { return shape + dims; }
  bool is_contiguous() const { return end == strides(); }
};

// The tensors in a key's words; false with a Python error if these are none.
inline bool read_tensors(std::vector<int64_t>& words, std::vector<DescribedTensor>& tensors) {
  const auto size = int64_t(words.size());
  int64_t at = size == 0 || words[0] < 0 ? size + 1 : words[0];
  while (at + 3 <= size) {
    const int64_t shape = at + 3, dims = words[at + 2] >> 1;
    if (dims < 0 || dims > kMostDimensions) break;
    at = shape + (words[at + 2] & 1 ? dims : 2 * dims);
    tensors.push_back({words.data() + shape, words.data() + at, dims});
  }
  if (at != size) PyErr_SetString(PyExc_ValueError, "no words of a key");
  return at == size;
}

// A dimension that may differ, as `PlaceOfSize`.
struct SizePlace {
  int64_t tensor, dim, number, more, is_multiple;
};

// Takes one size out of the words, and the distance between columns if it is the number of rows of columns; false if
// the call has no family.
inline bool take_out(const SizePlace& place, const DescribedTensor& tensor, int64_t most, int64_t& known,
                     int64_t& distance) {
  if (place.dim >= tensor.dims || -place.dim > tensor.dims) return false;
  int64_t& dimension = tensor.shape[place.dim < 0 ? place.dim + tensor.dims : place.dim];
  int64_t size = dimension - place.more, multiple = 0;
  if (place.is_multiple) {
    const int64_t unit = known ? known : 1;
    multiple = size / unit;
    size = size % unit == 0 ? known : -1;
  }
  if (size < 1 || size > most || (known && size != known)) return false;
  known = size;
  if (size == 1) return true;
  dimension = multiple;
  if (tensor.is_contiguous()) return true;
  const int64_t* strides = tensor.strides();
  if (tensor.dims == 2 && strides[0] == 1 && strides[1] >= size) {
    distance = strides[1];
    tensor.end[-1] = -1;  // no stride is negative
    return true;
  }
  return strides[&dimension - tensor.shape] >= *std::max_element(strides, strides + tensor.dims);
}

// without_sizes(words, places, largest sizes): a key's words without sizes, the sizes, for each place the distance
// between columns or 0, and whether a size larger than 1 is a dimension elsewhere; None if the call has no family.
inline PyObject* without_sizes(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !PyBytes_Check(given[0])) {
    PyErr_SetString(PyExc_TypeError, "without_sizes takes bytes, places and numbers");
    return nullptr;
  }
  const auto* begin = reinterpret_cast<const int64_t*>(PyBytes_AsString(given[0]));
  std::vector<int64_t> words(begin, begin + PyBytes_Size(given[0]) / sizeof *begin);
  std::vector<DescribedTensor> tensors;
  std::vector<int64_t> most, sizes, distances;
  const auto add_most = [&](PyObject* number) {
    most.push_back(PyLong_AsLongLong(number));
    return !PyErr_Occurred();
  };
  if (!read_tensors(words, tensors) || !for_each(given[2], add_most)) return nullptr;
  sizes.resize(most.size());
  bool has_family = true;
  const bool are_read = for_each(given[1], [&](PyObject* object) {
    int64_t numbers[5];
    if (!read_numbers(object, numbers)) return false;
    const auto [tensor, dim, number, more, is_multiple] = numbers;
    if (tensor < 0 || tensor >= int64_t(tensors.size()) || number < 0 || number >= int64_t(most.size())) {
      PyErr_SetString(PyExc_ValueError, "a place is in no tensor or of no size");
      return false;
    }
    const SizePlace place{tensor, dim, number, more, is_multiple};
    distances.push_back(0);
    has_family = has_family && take_out(place, tensors[tensor], most[number], sizes[number], distances.back());
    return true;
  });
  if (!are_read) return nullptr;
  if (!has_family || std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 2; })) Py_RETURN_NONE;
  bool is_elsewhere = false;
  for (const DescribedTensor& tensor : tensors)
    for (const int64_t size : sizes)
      is_elsewhere |= size > 1 && std::count(tensor.shape, tensor.shape + tensor.dims, size) > 0;
  const auto numbers = [](const std::vector<int64_t>& of) {
    PyObject* made = PyTuple_New(of.size());
    for (size_t i = 0; made && i < of.size(); i++) PyTuple_SetItem(made, i, PyLong_FromLongLong(of[i]));
    return made;
  };
  Objects<4> found;
  const auto* bytes = reinterpret_cast<const char*>(words.data());
  if (!found.add_owned(PyBytes_FromStringAndSize(bytes, words.size() * sizeof words[0]))) return nullptr;
  if (!found.add_owned(numbers(sizes)) || !found.add_owned(numbers(distances))) return nullptr;
  return found.add(is_elsewhere ? Py_True : Py_False) ? found.tuple() : nullptr;
}

// with_numbers(arguments, numbers, places): a copy of the bytes with these numbers, by name.
//
// A place is an offset and the number of bytes there, below zero if the number has a sign.
inline PyObject* with_numbers(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !PyBytes_Check(given[0]) || !PyDict_Check(given[1])) {
    PyErr_SetString(PyExc_TypeError, "with_numbers takes bytes, a dictionary of numbers, and places");
    return nullptr;
  }
  const Py_ssize_t size = PyBytes_Size(given[0]);
  PyObject* bytes = PyBytes_FromStringAndSize(PyBytes_AsString(given[0]), size);
  char* filled = bytes ? PyBytes_AsString(bytes) : nullptr;
  PyObject *name, *number;
  Py_ssize_t next = 0;
  while (filled && PyDict_Next(given[1], &next, &name, &number)) {
    PyObject* place = PyObject_GetItem(given[2], name);
    int64_t of_place[2] = {};
    const bool is_placed = place && read_numbers(place, of_place);
    const auto [offset, width] = of_place;
    Py_XDECREF(place);
    const int64_t value = is_placed ? PyLong_AsLongLong(number) : 0;
    const int64_t least = width == -8 ? INT64_MIN : width == -4 ? INT32_MIN : 0;
    const int64_t most = width == -4 ? INT32_MAX : width == 4 ? UINT32_MAX : INT64_MAX;
    const int64_t num_bytes = width < 0 ? -width : width;
    const bool is_inside = (num_bytes == 4 || num_bytes == 8) && offset >= 0 && offset + num_bytes <= size;
    if (!PyErr_Occurred() && (!is_inside || value < least || value > most))
      PyErr_Format(PyExc_OverflowError, "%R can't be %R", name, number);
    if (PyErr_Occurred()) {
      Py_DECREF(bytes);
      return nullptr;
    }
    memcpy(filled + offset, &value, num_bytes);  // the low bytes come first
  }
  return bytes;
}

}  // namespace repeat
