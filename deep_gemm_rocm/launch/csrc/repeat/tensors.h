// torch's tensors by DLPack 1.x (dlpack.h, "DLPackExchangeAPI"), as far as it is used here, and new ones.
#pragma once

#include <cstdint>

#include "python.h"

namespace repeat {

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

// What `use` was given.
inline int (*tensor_of)(PyObject*, DlTensor*);
inline PyObject *tensor_type, *parameter_type, *is_grad_enabled, *empty_strided, *recall_in_python;
inline PyObject *requires_grad, *is_neg, *fill_name;  // names of attributes

// A tensor of this form, and its description; null with a Python error.
inline PyObject* make_one(PyObject* form, DlTensor& tensor) {
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

}  // namespace repeat
