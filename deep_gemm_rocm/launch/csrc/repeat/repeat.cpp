// Describes calls, finds those that were remembered, makes new tensors, fills in addresses and calls kernels: the work
// of fast_path.py, in C++.
//
// Unusual arguments are left to the Python functions: other tensors than torch's own, views that are negated, tensors
// that require grad, arguments without end. So this file need not know what is wrong with them.
//
// The module uses only Python's stable ABI and DLPack's C functions for exchanging tensors, which torch has from 2.10
// on. One library serves all versions of both.

#include "families.h"
#include "remembered.h"

namespace repeat {
namespace {

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
}  // namespace repeat

PyMODINIT_FUNC PyInit__repeat() {
  using namespace repeat;
  requires_grad = PyUnicode_InternFromString("requires_grad");
  is_neg = PyUnicode_InternFromString("is_neg");
  fill_name = PyUnicode_InternFromString("fill");
  return requires_grad && is_neg && fill_name ? PyModule_Create(&definition) : nullptr;
}
