// The Python module `evenflow._native`.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa.h"
#include "threads.h"

namespace nb = nanobind;

namespace evenflow {
void bind_ceilings(nb::module_& m);
void bind_gemm(nb::module_& m);
void bind_model(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_sampling(nb::module_& m);
}  // namespace evenflow

NB_MODULE(_native, m) {
  m.doc() = "C++ kernels and the step of the native runner";
  m.def("runnable_isas", &evenflow::runnable_isas,
        "Instruction sets that this build holds and this machine runs, best first.");
  m.def("usable_cores", &evenflow::usable_cores,
        "Physical cores that the process may use: affinity and CPU quota respected.");
  evenflow::bind_ceilings(m);
  evenflow::bind_gemm(m);
  evenflow::bind_model(m);
  nb::module_ ops = m.def_submodule("ops", "Single kernels, for tests and benchmarks.");
  evenflow::bind_ops(ops);
  evenflow::bind_sampling(ops);
}
