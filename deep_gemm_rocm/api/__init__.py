"""The public functions, under the names of DeepGEMM."""
