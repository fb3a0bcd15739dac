# Makes module TARGET export PyInit__C and nothing else, with any compiler.
#
# C++ symbols that a module exports are shared with all that the process loads. A compiler with a
# static libstdc++ puts that library's into the module; torch, loaded later, would then run with a
# mixture of two copies of it, and crash.
include(CheckCXXCompilerFlag)

function(peergraph_export_entry_only target)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  # GCC gives static variables of inline functions a binding that even local symbols obey.
  check_cxx_compiler_flag(-fno-gnu-unique PEERGRAPH_HAS_NO_GNU_UNIQUE)
  if(PEERGRAPH_HAS_NO_GNU_UNIQUE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique>
                                             $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fno-gnu-unique>)
  endif()
  set(exports ${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(${target} PRIVATE LINKER:--exclude-libs,ALL
                                        LINKER:--version-script=${exports})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
  # pybind11 shares its types and its translators of exceptions among modules of one name here;
  # with two copies of libstdc++ they would throw into each other.
  target_compile_definitions(${target} PRIVATE PYBIND11_STDLIB="_peergraph")
endfunction()
