// The words of CUDA's headers that mean something to nvcc alone, for code of
// the CPU that includes them where nvcc's own package is not installed.
#pragma once

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDART_CB
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __cluster_dims__(...)
#define __constant__
#define __cudart_builtin__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __forceinline__ inline __attribute__((always_inline))
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __managed__
#define __no_return__ __attribute__((noreturn))
#define __shared__
#define __specialization_static
