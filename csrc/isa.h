// Which instruction sets this machine can run, and which one is used.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels.h"

namespace evenflow {

// Names of the instruction sets that this build holds and this machine can run, best first. The
// check covers the operating system too: a set whose registers it does not save is left out.
std::vector<std::string> runnable_isas();

// The kernels of `name`, or of the best set for "auto".
// Throws std::invalid_argument naming the sets that can be run.
const Kernels& find_kernels(std::string_view name);

}  // namespace evenflow
