// Describes the arguments of repeated calls, makes new tensors, fills in addresses and calls kernels: the work of
// fast_path.py, in C++.
//
// Unusual arguments are left to the Python functions: other tensors than torch's own, views that are negated, tensors
// that require grad, arguments without end. So this file need not know what is wrong with them.
//
// The module uses only Python's stable ABI and DLPack's C functions for exchanging tensors, which torch has from 2.10
// on. One library serves all versions of both.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000  // Python 3.10
#include <Python.h>

#include <cstdint>
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
constexpr uint8_t kFloat = 2;

// ---- What `use` was given

int (*tensor_of)(PyObject*, DlTensor*);
PyObject *tensor_type, *parameter_type, *is_grad_enabled, *empty_strided, *describe_in_python, *make_in_python;
PyObject *requires_grad, *is_neg;  // names of a tensor's attributes

// ---- The description of one call

constexpr int kMostParts = 64, kMostDimensions = 8, kMostTensors = 16;
constexpr int kWordsOfTensor = 3 + 2 * kMostDimensions;

// Objects in a fixed place, which becomes a tuple or a list of just their number.
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
  PyObject* list() {
    PyObject* made = PyList_New(count);
    for (int i = 0; made && i < count; i++) PyList_SetItem(made, i, of[i]);
    if (made) count = 0;
    return made;
  }
};

// A call's arguments, and the elements of tuples and lists among them behind all others.
using Parts = Objects<kMostParts>;
// The function and what describes it, the keywords' names, two for each part, and the tensors' words.
using Key = Objects<4 + 3 * kMostParts>;
using Tensors = Objects<kMostTensors>;

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

bool has_one_element(const DlTensor& tensor) {
  for (int i = 0; i < tensor.ndim; i++)
    if (tensor.shape[i] != 1) return false;
  return true;
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
  // Only real and imaginary parts of complex tensors may be negated lazily; contiguous ones have one element at most.
  if (tensor.type_code == kFloat && (!contiguous || has_one_element(tensor))) {
    const int negated = is_true(PyObject_CallMethodObjArgs(object, is_neg, nullptr));
    if (negated != 0) return negated < 0 ? Outcome::kError : Outcome::kUnusual;
  }
  if (with_grad) {
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

// Collects the arguments, and the keywords' names in the key.
Outcome collect(PyObject* args, PyObject* kwargs, Parts& parts, Key& key) {
  const Py_ssize_t count = PyTuple_Size(args);
  if (count < 0) return Outcome::kError;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!parts.add(PyTuple_GetItem(args, i))) return Outcome::kUnusual;
  PyObject *name, *value;
  for (Py_ssize_t position = 0; PyDict_Next(kwargs, &position, &name, &value);) {
    if (!parts.add(value)) return Outcome::kUnusual;
    key.add(name);
  }
  return Outcome::kDone;
}

// Appends a tuple's or list's length to the key, and its elements to the parts.
Outcome unpack(PyObject* sequence, Parts& parts, Key& key) {
  const Py_ssize_t size = PySequence_Size(sequence);
  if (!key.add_owned(PyLong_FromSsize_t(size))) return Outcome::kError;
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* element = PySequence_GetItem(sequence, i);
    if (!element) return Outcome::kError;
    if (!parts.add_owned(element)) return Outcome::kUnusual;
  }
  return Outcome::kDone;
}

// Fills in the key, the tensors and their addresses.
//
// The words of all tensors are at the key's end. In the place of each tensor, the key has the type torch.Tensor, which
// no other argument puts there: before every other argument the key has that one's type or its length. None is known by
// its type.
Outcome describe_parts(Parts& parts, Key& key, Tensors& tensors, PyObject** addresses) {
  int64_t words[kMostTensors * kWordsOfTensor], *end = words;
  void* found[kMostTensors];
  const int with_grad = is_true(PyObject_CallObject(is_grad_enabled, nullptr));
  if (with_grad < 0) return Outcome::kError;
  for (int i = 0; i < parts.count; i++) {
    PyObject* part = parts.of[i];
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(part));
    // Servers have parameters of classes of their own. Other subclasses of tensors may have no memory.
    if (type == tensor_type || PyType_IsSubtype(Py_TYPE(part), reinterpret_cast<PyTypeObject*>(parameter_type))) {
      if (!tensors.add(part)) return Outcome::kUnusual;
      const Outcome outcome = describe_tensor(part, with_grad, end, found[tensors.count - 1]);
      if (outcome != Outcome::kDone) return outcome;
      key.add(tensor_type);
    } else if (PyTuple_CheckExact(part) || PyList_CheckExact(part)) {
      const Outcome outcome = unpack(part, parts, key);
      if (outcome != Outcome::kDone) return outcome;
    } else if (PyType_IsSubtype(Py_TYPE(part), reinterpret_cast<PyTypeObject*>(tensor_type))) {
      return Outcome::kUnusual;
    } else {
      key.add(type);
      if (part != Py_None) key.add(part);
    }
  }
  const auto* bytes = reinterpret_cast<char*>(words);
  if (!key.add_owned(PyBytes_FromStringAndSize(bytes, (end - words) * sizeof *words))) return Outcome::kError;
  Objects<kMostTensors> of_tensors;
  for (int i = 0; i < tensors.count; i++)
    if (!of_tensors.add_owned(PyLong_FromVoidPtr(found[i]))) return Outcome::kError;
  *addresses = of_tensors.tuple();
  return *addresses ? Outcome::kDone : Outcome::kError;
}

// describe(function, values, args, kwargs)
PyObject* describe(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!describe_in_python) {
    PyErr_SetString(PyExc_RuntimeError, "use() was not called");
    return nullptr;
  }
  if (count != 4 || !PyTuple_CheckExact(given[2]) || !PyDict_CheckExact(given[3])) {
    PyErr_SetString(PyExc_TypeError, "describe takes a function, settings, a tuple and a dict");
    return nullptr;
  }
  Parts parts;
  Key key;
  Tensors tensors;
  PyObject* addresses = nullptr;
  // The first element tells these keys from those of the Python function, which begin with the called function.
  for (PyObject* first : {describe_in_python, given[0], given[1]}) key.add(first);
  Outcome outcome = collect(given[2], given[3], parts, key);
  if (outcome == Outcome::kDone) outcome = describe_parts(parts, key, tensors, &addresses);
  if (outcome == Outcome::kUnusual)
    return PyObject_CallFunctionObjArgs(describe_in_python, given[0], given[1], given[2], given[3], nullptr);
  Objects<3> result;
  if (outcome == Outcome::kDone && result.add_owned(key.tuple()) && result.add_owned(tensors.list()) &&
      result.add_owned(addresses))
    return result.tuple();
  return nullptr;
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

// make(forms, tensors, addresses)
PyObject* make(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!make_in_python || count != 3 || !PyList_CheckExact(given[0]) || !PyList_CheckExact(given[1]) ||
      !PyTuple_CheckExact(given[2]) || PyList_Size(given[1]) == 0) {
    PyErr_SetString(PyExc_TypeError, "make takes a list of forms, a list of tensors and a tuple of addresses");
    return nullptr;
  }
  PyObject *forms = given[0], *tensors = given[1], *before = given[2];
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(PyList_GetItem(tensors, 0)));
  if (type != tensor_type && type != parameter_type)
    return PyObject_CallFunctionObjArgs(make_in_python, forms, tensors, before, nullptr);
  const Py_ssize_t num_before = PyTuple_Size(before), num_made = PyList_Size(forms);
  PyObject* addresses = PyTuple_New(num_before + num_made);
  if (!addresses) return nullptr;
  for (Py_ssize_t i = 0; i < num_before; i++) {
    PyObject* address = PyTuple_GetItem(before, i);
    Py_INCREF(address);
    PyTuple_SetItem(addresses, i, address);
  }
  for (Py_ssize_t i = 0; i < num_made; i++) {
    PyObject* address = nullptr;
    DlTensor tensor;
    PyObject* made = make_one(PyList_GetItem(forms, i), tensor);
    if (made && PyList_Append(tensors, made) == 0)
      address = PyLong_FromVoidPtr(static_cast<char*>(tensor.data) + tensor.byte_offset);
    Py_XDECREF(made);
    if (!address) {
      Py_DECREF(addresses);
      return nullptr;
    }
    PyTuple_SetItem(addresses, num_before + i, address);
  }
  return addresses;
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
  Py_ssize_t most_number = 0;

  ~Remembered() {
    for (Step& step : steps) Py_DECREF(step.entry_point);
  }
  void note(Py_ssize_t number) {
    if (number > most_number) most_number = number;
  }
};

constexpr char kRememberedName[] = "deep_gemm_rocm launches";
constexpr int kMostAddresses = 64;
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

bool add_step(Remembered& remembered, PyObject* object) {
  PyObject *entry_point, *places;
  const char* words;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(object, "Oy#O", &entry_point, &words, &size, &places)) return false;
  const auto* begin = reinterpret_cast<const uint64_t*>(words);
  Py_INCREF(entry_point);
  remembered.steps.push_back({entry_point, {begin, begin + size / sizeof *begin}, {}});
  Step& step = remembered.steps.back();
  return for_each(places, [&](PyObject* of_place) {
    Place place;
    long long offset;
    if (!PyArg_ParseTuple(of_place, "nnL", &place.word, &place.number, &offset)) return false;
    if (place.word < 0 || place.word >= Py_ssize_t(step.words.size()) || place.number < -1) {
      PyErr_SetString(PyExc_ValueError, "a place is outside of the arguments");
      return false;
    }
    place.offset = offset;
    remembered.note(place.number);
    step.places.push_back(place);
    return true;
  });
}

bool add_rules(Remembered& remembered, PyObject* aligned, PyObject* apart, PyObject* together) {
  const auto add_aligned = [&](PyObject* object) {
    const Py_ssize_t number = PyLong_AsSsize_t(object);
    remembered.note(number);
    remembered.aligned.push_back(number);
    return number >= 0;
  };
  const auto add_apart = [&](PyObject* object) {
    Apart rule;
    long long size, other_size;
    if (!PyArg_ParseTuple(object, "nnLL", &rule.written, &rule.other, &size, &other_size)) return false;
    rule.size = size, rule.other_size = other_size;
    remembered.note(rule.written), remembered.note(rule.other);
    remembered.apart.push_back(rule);
    return true;
  };
  const auto add_together = [&](PyObject* object) {
    Together rule;
    long long distance;
    if (!PyArg_ParseTuple(object, "nnL", &rule.written, &rule.other, &distance)) return false;
    rule.distance = distance;
    remembered.note(rule.written), remembered.note(rule.other);
    remembered.together.push_back(rule);
    return true;
  };
  return for_each(aligned, add_aligned) && for_each(apart, add_apart) && for_each(together, add_together);
}

bool is_allowed(const Remembered& remembered, const uint64_t* addresses, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++)
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

// Entry point and arguments.
PyObject* filled_in(const Step& step, const uint64_t* addresses, Py_ssize_t count) {
  PyObject* bytes = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(step.words.data()),
                                              step.words.size() * sizeof step.words[0]);
  if (!bytes) return nullptr;
  auto* words = reinterpret_cast<uint64_t*>(PyBytes_AsString(bytes));
  for (const Place& place : step.places)
    words[place.word] = addresses[place.number < 0 ? count - 1 : place.number] + place.offset;
  PyObject* launch = PyTuple_Pack(2, step.entry_point, bytes);
  Py_DECREF(bytes);
  return launch;
}

// fill(addresses), for what is in the capsule `self`: the launches, None for addresses that aren't allowed.
PyObject* fill(PyObject* self, PyObject* given) {
  const auto& remembered = *static_cast<Remembered*>(PyCapsule_GetPointer(self, kRememberedName));
  const Py_ssize_t count = PyTuple_Size(given);
  if (count < 0) return nullptr;
  if (count <= remembered.most_number || count > kMostAddresses) {
    PyErr_SetString(PyExc_ValueError, "these aren't the addresses of all tensors");
    return nullptr;
  }
  uint64_t addresses[kMostAddresses];
  for (Py_ssize_t i = 0; i < count; i++) addresses[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, i));
  if (PyErr_Occurred()) return nullptr;
  if (!is_allowed(remembered, addresses, count)) Py_RETURN_NONE;
  PyObject* launches = PyTuple_New(remembered.steps.size());
  for (size_t i = 0; launches && i < remembered.steps.size(); i++) {
    PyObject* launch = filled_in(remembered.steps[i], addresses, count);
    if (launch) {
      PyTuple_SetItem(launches, i, launch);
    } else {
      Py_DECREF(launches);
      return nullptr;
    }
  }
  return launches;
}

PyMethodDef fill_method = {"fill", fill, METH_O, nullptr};

// filler(steps, aligned, apart, together)
PyObject* filler(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "filler takes steps and three kinds of rules");
    return nullptr;
  }
  auto remembered = std::make_unique<Remembered>();
  const auto add = [&](PyObject* step) { return add_step(*remembered, step); };
  if (!for_each(given[0], add) || !add_rules(*remembered, given[1], given[2], given[3])) return nullptr;
  const auto free = [](PyObject* capsule) {
    delete static_cast<Remembered*>(PyCapsule_GetPointer(capsule, kRememberedName));
  };
  PyObject* capsule = PyCapsule_New(remembered.get(), kRememberedName, free);
  if (!capsule) return nullptr;
  remembered.release();
  PyObject* function = PyCFunction_New(&fill_method, capsule);
  Py_DECREF(capsule);
  return function;
}

// ---- Launches

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

// use(capsule of DLPack's functions, Tensor, Parameter, is_grad_enabled, empty_strided, describe_in_python,
// make_in_python): False if their version is unknown.
PyObject* use(PyObject*, PyObject* const* given, Py_ssize_t count) {
  PyObject** const kept[] = {&tensor_type,   &parameter_type,     &is_grad_enabled,
                             &empty_strided, &describe_in_python, &make_in_python};
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
    {"describe", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(describe)), METH_FASTCALL, nullptr},
    {"make", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(make)), METH_FASTCALL, nullptr},
    {"filler", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(filler)), METH_FASTCALL, nullptr},
    {"entry_point", entry_point, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_repeat", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__repeat() {
  requires_grad = PyUnicode_InternFromString("requires_grad");
  is_neg = PyUnicode_InternFromString("is_neg");
  return requires_grad && is_neg ? PyModule_Create(&definition) : nullptr;
}
