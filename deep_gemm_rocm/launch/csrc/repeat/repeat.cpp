// Describes calls, finds those that were remembered, makes new tensors, fills in addresses and calls kernels: the work
// of fast_path.py, in C++.
//
// Unusual arguments are left to the Python functions: other tensors than torch's own, views that are negated, tensors
// that require grad, arguments without end. So this file need not know what is wrong with them.
//
// The module uses only Python's stable ABI and DLPack's C functions for exchanging tensors, which torch has from 2.10
// on. One library serves all versions of both.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000  // Python 3.10
#include <Python.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace {

// ---- DLPack 1.x (dlpack.h, "DLPackExchangeAPI"), as far as it is used here

struct DlTensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct DlExchangeApi {
  uint32_t major, minor;
  DlExchangeApi* previous;
  void *allocate, *from_object, *to_object;
  int (*tensor_of)(PyObject* object, DlTensor* tensor);  // -1 with a Python error
  void* current_stream;
};

constexpr uint32_t kMajor = 1;
constexpr uint8_t kInt = 0, kUnsigned = 1, kFloat = 2, kBool = 6;

// ---- What `use` was given

int (*tensor_of)(PyObject*, DlTensor*);
PyObject *tensor_type, *parameter_type, *is_grad_enabled, *empty_strided, *recall_in_python;
PyObject *requires_grad, *is_neg, *fill_name;  // names of attributes

// ---- The description of one call

constexpr int kMostParts = 64, kMostDimensions = 8, kMostTensors = 16;
constexpr int kWordsOfTensor = 3 + 2 * kMostDimensions;

// Objects in a fixed place, which are made a tuple or a list of just their number.
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

// A call's arguments, and the elements of tuples and lists among them behind all others.
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

bool is_contiguous(const DlTensor& tensor) {
  int64_t expected = 1;
  bool contiguous = true;
  for (int i = tensor.ndim - 1; i >= 0; i--) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1) contiguous &= tensor.strides[i] == expected;
    expected *= tensor.shape[i];
  }
  return contiguous;
}

// Only imaginary parts of complex tensors may be negated lazily. They begin in the middle of a complex number, and have
// every other number of a row.
bool may_be_negated(const DlTensor& tensor) {
  if (tensor.type_code != kFloat) return false;
  const uint64_t address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  if (address % (tensor.type_bits / 4)) return true;
  for (int i = 0; i < tensor.ndim; i++)
    if (tensor.shape[i] != 1 && tensor.strides[i] % 2) return false;
  return true;
}

bool may_require_grad(const DlTensor& tensor) {
  return tensor.type_code != kInt && tensor.type_code != kUnsigned && tensor.type_code != kBool;
}

// Whether the object is True; -1 with a Python error. Takes over the reference.
int is_true(PyObject* object) {
  if (!object) return -1;
  const int result = object == Py_True;
  Py_DECREF(object);
  return result;
}

// Appends the words that describe a tensor: type, device, and shape, with strides unless they follow from the shape.
Outcome describe_tensor(PyObject* object, bool with_grad, int64_t*& words, void*& address) {
  DlTensor tensor;
  if (tensor_of(object, &tensor) != 0) {
    PyErr_Clear();
    return Outcome::kUnusual;
  }
  if (tensor.ndim > kMostDimensions) return Outcome::kUnusual;
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
const void* interned(PyObject* name) {
  Py_INCREF(name);
  PyUnicode_InternInPlace(&name);
  const void* address = name;
  Py_DECREF(name);
  return address;
}

// Collects the arguments, and words for the keywords.
Outcome collect(PyObject* args, PyObject* kwargs, Parts& parts, Words& words) {
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
Outcome unpack(PyObject* sequence, Parts& parts, Words& words) {
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

// A word behind a float's type, where addresses stand otherwise: 0.0 equals -0.0, but results may differ.
constexpr int64_t kNegative = -1;

bool is_negative_float(PyObject* part) { return PyFloat_Check(part) && std::signbit(PyFloat_AsDouble(part)); }

// The type of every argument is in the words, so that the key tells 1 from True. All other elements of the key are
// arguments.
Outcome describe_parts(Parts& parts, Words& words, Described& described) {
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

Outcome describe(PyObject* function, PyObject* values, PyObject* args, PyObject* kwargs, Described& described) {
  Parts parts;
  Words words;
  // The first element tells these keys from those of the Python function, which begin with the called function.
  for (PyObject* first : {recall_in_python, function, values}) described.key.add(first);
  const Outcome outcome = collect(args, kwargs, parts, words);
  return outcome == Outcome::kDone ? describe_parts(parts, words, described) : outcome;
}

// ---- New tensors

// A tensor of this form, and its description; null with a Python error.
PyObject* make_one(PyObject* form, DlTensor& tensor) {
  PyObject *quick = PyTuple_GetItem(form, 2), *index = PyTuple_GetItem(form, 4);
  if (!quick || !index) return nullptr;
  if (quick != Py_None) {
    PyObject* made = PyObject_Call(quick, PyTuple_GetItem(form, 3), nullptr);
    const long device = PyLong_AsLong(index);
    if (made && tensor_of(made, &tensor) == 0 && (device < 0 || device == tensor.device_id)) return made;
    Py_XDECREF(made);
    PyErr_Clear();  // the current device may have no memory left, and be another one
  }
  PyObject* made = PyObject_Call(empty_strided, PyTuple_GetItem(form, 0), PyTuple_GetItem(form, 1));
  if (made && tensor_of(made, &tensor) == 0) return made;
  Py_XDECREF(made);
  return nullptr;
}

// ---- Addresses

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

bool add_step(Remembered& remembered, PyObject* object) {
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

bool add_rules(Remembered& remembered, PyObject* aligned, PyObject* apart, PyObject* together) {
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

bool is_allowed(const Remembered& remembered, const uint64_t* addresses) {
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
Outcome make(const Remembered& remembered, PyObject* tensors, uint64_t* addresses) {
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
PyObject* filled_in(const Step& step, const uint64_t* addresses, uint64_t scratch) {
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

// The launches, and appends new tensors to `tensors`; None if these may not be where they are.
//
// `addresses` has those of the given tensors, and place for those of the new ones.
PyObject* filled_in(const Remembered& remembered, PyObject* tensors, uint64_t* addresses) {
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
PyObject* filler(PyObject*, PyObject* const* given, Py_ssize_t count) {
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
PyObject* fill(PyObject*, PyObject* const* given, Py_ssize_t count) {
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

// ---- Remembered calls

// The call, its tensors and its launches; None if it has no capsule yet, or its tensors may not be where they are.
PyObject* repeated(PyObject* call, Described& described) {
  Objects<4> found;
  if (!found.add(call)) return nullptr;
  PyObject* capsule = PyObject_GetAttr(call, fill_name);
  if (!capsule) return nullptr;
  Objects<1> kept;
  kept.add_owned(capsule);
  if (!PyCapsule_IsValid(capsule, kRememberedName)) Py_RETURN_NONE;
  const auto& remembered = *static_cast<Remembered*>(PyCapsule_GetPointer(capsule, kRememberedName));
  if (remembered.num_given != described.tensors.count) Py_RETURN_NONE;
  uint64_t addresses[kMostTensors + kMostMade];
  for (int i = 0; i < described.tensors.count; i++) addresses[i] = reinterpret_cast<uintptr_t>(described.addresses[i]);
  PyObject* tensors = described.tensors.list();
  if (!found.add_owned(tensors)) return nullptr;
  PyObject* launches = filled_in(remembered, tensors, addresses);
  if (launches == Py_None) return launches;
  return found.add_owned(launches) ? found.tuple() : nullptr;
}

// The key, the tensors and their addresses.
PyObject* as_objects(PyObject* key, Described& described) {
  Objects<3> objects;
  Tensors addresses;
  for (int i = 0; i < described.tensors.count; i++)
    if (!addresses.add_owned(PyLong_FromVoidPtr(described.addresses[i]))) return nullptr;
  if (!objects.add(key) || !objects.add_owned(described.tensors.list())) return nullptr;
  return objects.add_owned(addresses.tuple()) ? objects.tuple() : nullptr;
}

// recall(function, values, known, args, kwargs): what describes the call, or None, and what is to be repeated, or None
PyObject* recall(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!recall_in_python) {
    PyErr_SetString(PyExc_RuntimeError, "use() was not called");
    return nullptr;
  }
  if (count != 5 || !PyDict_CheckExact(given[2]) || !PyTuple_CheckExact(given[3]) || !PyDict_CheckExact(given[4])) {
    PyErr_SetString(PyExc_TypeError, "recall takes a function, settings, a dict, a tuple and a dict");
    return nullptr;
  }
  Described described;
  const Outcome outcome = describe(given[0], given[1], given[3], given[4], described);
  if (outcome == Outcome::kUnusual)
    return PyObject_CallFunctionObjArgs(recall_in_python, given[0], given[1], given[2], given[3], given[4], nullptr);
  Objects<1> key;
  if (outcome == Outcome::kError || !key.add_owned(described.key.tuple())) return nullptr;
  PyObject* call = PyDict_GetItemWithError(given[2], key.of[0]);
  if (!call && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return nullptr;
    PyErr_Clear();  // an argument has no hash
    return PyTuple_Pack(2, Py_None, Py_None);
  }
  Objects<2> found;
  if (call) {
    PyObject* again = repeated(call, described);
    if (!again) return nullptr;
    if (again != Py_None) return found.add(Py_None) && found.add_owned(again) ? found.tuple() : nullptr;
    Py_DECREF(again);
  }
  if (!found.add_owned(as_objects(key.of[0], described)) || !found.add(Py_None)) return nullptr;
  return found.tuple();
}

// ---- Families

// A tensor in a key's words, as `describe_tensor` writes them. Strides follow the shape unless they follow from it.
struct DescribedTensor {
  int64_t *shape, *end, dims;

  const int64_t* strides() const { return shape + dims; }
  bool is_contiguous() const { return end == strides(); }
};

// The tensors in a key's words; false with a Python error if these are none.
bool read_tensors(std::vector<int64_t>& words, std::vector<DescribedTensor>& tensors) {
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
bool take_out(const SizePlace& place, const DescribedTensor& tensor, int64_t most, int64_t& known, int64_t& distance) {
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
PyObject* without_sizes(PyObject*, PyObject* const* given, Py_ssize_t count) {
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

// ---- Launches

// with_numbers(arguments, numbers, places): a copy of the bytes with these numbers, by name.
//
// A place is an offset and the number of bytes there, below zero if the number has a sign.
PyObject* with_numbers(PyObject*, PyObject* const* given, Py_ssize_t count) {
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

// The entry point whose address is `self`, called with the kernel's arguments as bytes and a stream's handle.
PyObject* launch(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "an entry point takes arguments and a stream");
    return nullptr;
  }
  auto* entry_point = reinterpret_cast<int (*)(const void*, void*)>(PyLong_AsVoidPtr(self));
  const char* arguments = PyBytes_AsString(given[0]);
  void* stream = arguments ? PyLong_AsVoidPtr(given[1]) : nullptr;
  if (PyErr_Occurred()) return nullptr;
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = entry_point(arguments, stream);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong(status);
}

PyMethodDef launch_method = {"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launch)),
                             METH_FASTCALL, nullptr};

// entry_point(address): a function that calls the one at this address.
PyObject* entry_point(PyObject*, PyObject* address) {
  if (!PyLong_AsVoidPtr(address)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an entry point has an address");
    return nullptr;
  }
  return PyCFunction_New(&launch_method, address);
}

// ---- The module

// use(capsule of DLPack's functions, Tensor, Parameter, is_grad_enabled, empty_strided, recall_in_python): False if
// their version is unknown.
PyObject* use(PyObject*, PyObject* const* given, Py_ssize_t count) {
  PyObject** const kept[] = {&tensor_type, &parameter_type, &is_grad_enabled, &empty_strided, &recall_in_python};
  constexpr int kKept = sizeof kept / sizeof *kept;
  if (count != 1 + kKept) {
    PyErr_Format(PyExc_TypeError, "use takes %d arguments", 1 + kKept);
    return nullptr;
  }
  auto* api = static_cast<DlExchangeApi*>(PyCapsule_GetPointer(given[0], "dlpack_exchange_api"));
  if (!api && PyErr_Occurred()) return nullptr;
  while (api && api->major != kMajor) api = api->previous;
  if (!api || !api->tensor_of) Py_RETURN_FALSE;
  tensor_of = api->tensor_of;
  for (int i = 0; i < kKept; i++) {
    Py_INCREF(given[i + 1]);
    Py_XDECREF(*kept[i]);
    *kept[i] = given[i + 1];
  }
  Py_RETURN_TRUE;
}

PyMethodDef methods[] = {
    {"use", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(use)), METH_FASTCALL, nullptr},
    {"recall", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(recall)), METH_FASTCALL, nullptr},
    {"filler", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(filler)), METH_FASTCALL, nullptr},
    {"fill", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fill)), METH_FASTCALL, nullptr},
    {"without_sizes", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(without_sizes)), METH_FASTCALL,
     nullptr},
    {"with_numbers", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(with_numbers)), METH_FASTCALL, nullptr},
    {"entry_point", entry_point, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_repeat", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__repeat() {
  requires_grad = PyUnicode_InternFromString("requires_grad");
  is_neg = PyUnicode_InternFromString("is_neg");
  fill_name = PyUnicode_InternFromString("fill");
  return requires_grad && is_neg && fill_name ? PyModule_Create(&definition) : nullptr;
}
