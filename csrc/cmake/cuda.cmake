# Decides whether the CUDA part is built, with which nvcc and for which architectures.
# Sets PEERGRAPH_WITH_CUDA.
set(PEERGRAPH_WITH_CUDA OFF)
if(PEERGRAPH_CUDA STREQUAL "OFF")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
               PATH_SUFFIXES bin)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  if(PEERGRAPH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PEERGRAPH_CUDA=ON, but there is no nvcc: install the CUDA toolkit, set "
                        "CUDACXX to its nvcc, or set PEERGRAPH_PIP_NVCC=1 to take one from pip")
  endif()
  unset(CMAKE_CUDA_COMPILER CACHE)
  message(STATUS "peergraph: no nvcc, building the CPU part only")
  return()
endif()

if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  if(EXISTS /dev/nvidiactl)
    set(CMAKE_CUDA_ARCHITECTURES native)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
message(STATUS "peergraph: building the CUDA part (PEERGRAPH_CUDA=OFF leaves it out)")
enable_language(CUDA)
set(PEERGRAPH_WITH_CUDA ON)
