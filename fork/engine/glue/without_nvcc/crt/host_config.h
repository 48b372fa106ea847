// What the compiler has to be for nvcc; code of the CPU, which is compiled
// without it, needs nothing of that.
#pragma once
