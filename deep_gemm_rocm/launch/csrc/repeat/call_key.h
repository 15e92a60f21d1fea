// The key of a call: what a remembered call has in common with others that may repeat it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensors.h"

namespace repeat {

constexpr int kMostParts = 64, kMostDimensions = 8, kMostTensors = 16;
constexpr int kWordsOfTensor = 3 + 2 * kMostDimensions;

// Up to `most` objects in an array, from which a tuple or list of just their number is made.
template <int most>
struct Objects {
  PyObject* of[most];
  int count = 0;

  ~Objects() {
    for (int i = 0; i < count; i++) Py_XDECREF(of[i]);
  }
  // False if there is no place left.
  bool add(PyObject* object) {
    Py_XINCREF(object);
    return add_owned(object);
  }
  // Takes over the reference; false if there is no place left, or if it is null, with a Python error.
  bool add_owned(PyObject* object) {
    if (!object || count == most) {
      Py_XDECREF(object);
      return false;
    }
    of[count++] = object;
    return true;
  }
  // Hands on the references.
  PyObject* tuple() {
    PyObject* made = PyTuple_New(count);
    for (int i = 0; made && i < count; i++) PyTuple_SetItem(made, i, of[i]);
    if (made) count = 0;
    return made;
  }
  PyObject* list() const {
    PyObject* made = PyList_New(count);
    for (int i = 0; made && i < count; i++) {
      Py_INCREF(of[i]);
      PyList_SetItem(made, i, of[i]);
    }
    return made;
  }
};

// A call's arguments, followed by the elements of tuples and lists among them.
using Parts = Objects<kMostParts>;
// The function and what describes it, arguments that aren't tensors, and the words.
using Key = Objects<4 + kMostParts>;
using Tensors = Objects<kMostTensors>;

// The numbers of a key: a call's keywords, the types of its arguments, and then its tensors.
//
// An address stands for each name, which is interned, and for each type. Names of remembered calls are kept in
// fast_path.py. Types are Python's own or kept by an argument in the key.
struct Words {
  int64_t of_parts[1 + 3 * kMostParts], of_tensors[kMostTensors * kWordsOfTensor];
  int64_t *end = of_parts + 1, *end_of_tensors = of_tensors;

  void add(int64_t word) { *end++ = word; }
  void add(const void* address) { add(reinterpret_cast<intptr_t>(address)); }
  // The first word is the number of those before the tensors'.
  PyObject* bytes() {
    of_parts[0] = end - of_parts;
    const size_t size = (end - of_parts) * sizeof *end, more = (end_of_tensors - of_tensors) * sizeof *end;
    PyObject* made = PyBytes_FromStringAndSize(nullptr, size + more);
    char* to = made ? PyBytes_AsString(made) : nullptr;
    if (!to) return nullptr;
    memcpy(to, of_parts, size);
    memcpy(to + size, of_tensors, more);
    return made;
  }
};

enum class Outcome { kDone, kUnusual, kError };

inline bool is_contiguous(const DlTensor& tensor) {
  int64_t expected = 1;
  bool contiguous = true;
  for (int i = tensor.ndim - 1; i >= 0; i--) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1) contiguous &= tensor.strides[i] == expected;
    expected *= tensor.shape[i];
  }
  return contiguous;
}

// Whether the tensor has elements and no memory for them, as after torch's untyped_storage().resize_(0).
inline bool is_freed(const DlTensor& tensor) {
  if (tensor.data) return false;
  for (int i = 0; i < tensor.ndim; i++)
    if (tensor.shape[i] == 0) return false;
  return true;
}

// Only imaginary parts of complex tensors may be negated lazily. They begin in the middle of a complex number, and have
// every other number of a row.
inline bool may_be_negated(const DlTensor& tensor) {
  if (tensor.type_code != kFloat) return false;
  const uint64_t address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  if (address % (tensor.type_bits / 4)) return true;
  for (int i = 0; i < tensor.ndim; i++)
    if (tensor.shape[i] != 1 && tensor.strides[i] % 2) return false;
  return true;
}

inline bool may_require_grad(const DlTensor& tensor) {
  return tensor.type_code != kInt && tensor.type_code != kUnsigned && tensor.type_code != kBool;
}

// Whether the object is True; -1 with a Python error. Takes over the reference.
inline int is_true(PyObject* object) {
  if (!object) return -1;
  const int result = object == Py_True;
  Py_DECREF(object);
  return result;
}

// Appends the words that describe a tensor: type, device, and shape, with strides unless they follow from the shape.
inline Outcome describe_tensor(PyObject* object, bool with_grad, int64_t*& words, void*& address) {
  DlTensor tensor;
  if (tensor_of(object, &tensor) != 0) {
    PyErr_Clear();
    return Outcome::kUnusual;
  }
  if (tensor.ndim > kMostDimensions || is_freed(tensor)) return Outcome::kUnusual;
  const bool contiguous = is_contiguous(tensor);
  if (may_be_negated(tensor)) {
    const int negated = is_true(PyObject_CallMethodObjArgs(object, is_neg, nullptr));
    if (negated != 0) return negated < 0 ? Outcome::kError : Outcome::kUnusual;
  }
  if (with_grad && may_require_grad(tensor)) {
    const int required = is_true(PyObject_GetAttr(object, requires_grad));
    if (required != 0) return required < 0 ? Outcome::kError : Outcome::kUnusual;
  }
  *words++ = tensor.type_code | tensor.type_bits << 8 | int64_t{tensor.type_lanes} << 16;
  *words++ = int64_t{tensor.device_type} << 32 | tensor.device_id;
  *words++ = tensor.ndim << 1 | contiguous;
  for (int i = 0; i < tensor.ndim; i++) *words++ = tensor.shape[i];
  for (int i = 0; i < tensor.ndim && !contiguous; i++) *words++ = tensor.strides[i];
  address = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return Outcome::kDone;
}

// The name, which may be freed when the caller's is.
inline const void* interned(PyObject* name) {
  Py_INCREF(name);
  PyUnicode_InternInPlace(&name);
  const void* address = name;
  Py_DECREF(name);
  return address;
}

// Collects the arguments, and words for the keywords.
inline Outcome collect(PyObject* args, PyObject* kwargs, Parts& parts, Words& words) {
  const Py_ssize_t count = PyTuple_Size(args);
  if (count < 0) return Outcome::kError;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!parts.add(PyTuple_GetItem(args, i))) return Outcome::kUnusual;
  PyObject *name, *value;
  for (Py_ssize_t position = 0; PyDict_Next(kwargs, &position, &name, &value);) {
    if (!parts.add(value) || !PyUnicode_CheckExact(name)) return Outcome::kUnusual;
    words.add(interned(name));
  }
  return Outcome::kDone;
}

// Appends a tuple's or list's elements to the parts.
inline Outcome unpack(PyObject* sequence, Parts& parts, Words& words) {
  const Py_ssize_t size = PySequence_Size(sequence);
  words.add(&PyTuple_Type);
  words.add(size);
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* element = PySequence_GetItem(sequence, i);
    if (!element) return Outcome::kError;
    if (!parts.add_owned(element)) return Outcome::kUnusual;
  }
  return Outcome::kDone;
}

// A call's key, its tensors and their addresses.
struct Described {
  Key key;
  Tensors tensors;
  void* addresses[kMostTensors];
};

// A word after the type of a negative float. It isn't the address of any type. It tells -0.0 from 0.0, which are equal,
// but may give different results.
constexpr int64_t kNegative = -1;

inline bool is_negative_float(PyObject* part) { return PyFloat_Check(part) && std::signbit(PyFloat_AsDouble(part)); }

// The type of every argument is in the words, so that the key tells 1 from True. All other elements of the key are
// arguments.
inline Outcome describe_parts(Parts& parts, Words& words, Described& described) {
  const int with_grad = is_true(PyObject_CallObject(is_grad_enabled, nullptr));
  if (with_grad < 0) return Outcome::kError;
  for (int i = 0; i < parts.count; i++) {
    PyObject* part = parts.of[i];
    PyTypeObject* type = Py_TYPE(part);
    // Servers have parameters of classes of their own. Other subclasses of tensors may have no memory.
    if (type == reinterpret_cast<PyTypeObject*>(tensor_type) ||
        PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(parameter_type))) {
      if (!described.tensors.add(part)) return Outcome::kUnusual;
      void*& address = described.addresses[described.tensors.count - 1];
      const Outcome outcome = describe_tensor(part, with_grad, words.end_of_tensors, address);
      if (outcome != Outcome::kDone) return outcome;
      words.add(tensor_type);
    } else if (part == Py_None || part == Py_True || part == Py_False) {
      words.add(part);
    } else if (PyTuple_Check(part) || PyList_Check(part)) {
      const Outcome outcome = unpack(part, parts, words);
      if (outcome != Outcome::kDone) return outcome;
    } else if (PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(tensor_type))) {
      return Outcome::kUnusual;
    } else {
      words.add(type);
      if (is_negative_float(part)) words.add(kNegative);
      described.key.add(part);
    }
  }
  return described.key.add_owned(words.bytes()) ? Outcome::kDone : Outcome::kError;
}

inline Outcome describe(PyObject* function, PyObject* values, PyObject* args, PyObject* kwargs, Described& described) {
  Parts parts;
  Words words;
  // The first element tells these keys from those of the Python function, which begin with the called function.
  for (PyObject* first : {recall_in_python, function, values}) described.key.add(first);
  const Outcome outcome = collect(args, kwargs, parts, words);
  return outcome == Outcome::kDone ? describe_parts(parts, words, described) : outcome;
}

}  // namespace repeat
