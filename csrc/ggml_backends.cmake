# ggml's backends as libraries of their own in tgr_local/lib, loaded when the engine is. Every variant of its CPU code is
# for a set of processors, and ggml loads the best that runs on this one. They share ggml-base, whose name is ours: the
# dynamic linker would take llama-cpp-python's library for one of the same name.
#
# AMX is in no variant: gcc before 14 compiles ggml's AMX code to code that crashes.
set(TGR_CPU_VARIANTS x64 sandybridge haswell alderlake skylakex icelake zen4
  armv8.0_1 armv8.2_1 armv8.2_2 armv8.2_3 armv8.6_1 armv8.6_2 apple_m1 apple_m2_m3 apple_m4
  CACHE STRING "Variants of ggml's CPU code, by ggml's names; those of this architecture are built")

# ggml's registry of backends is part of the engine; its own target would build all of its variants
add_library(registry STATIC ${PLAIN_DIR}/ggml/src/ggml-backend-dl.cpp ${PLAIN_DIR}/ggml/src/ggml-backend-reg.cpp)
target_compile_definitions(registry PRIVATE GGML_BUILD)
target_include_directories(registry PRIVATE ${PLAIN_DIR}/ggml/src)
target_link_libraries(registry PUBLIC ggml-base ${CMAKE_DL_LIBS})
set(GGML_LIBRARIES registry)

set(BACKENDS "")
list(TRANSFORM TGR_CPU_VARIANTS PREPEND cpu- OUTPUT_VARIABLE NAMES)
foreach(NAME ${NAMES} metal cuda)
  if(TARGET ggml-${NAME})
    list(APPEND BACKENDS ggml-${NAME})
  endif()
endforeach()
set_target_properties(ggml-base PROPERTIES OUTPUT_NAME tgr-ggml-base)
foreach(LIBRARY ggml-base ${BACKENDS})
  set_property(TARGET ${LIBRARY} PROPERTY VERSION)
  set_property(TARGET ${LIBRARY} PROPERTY SOVERSION)
  set_target_properties(${LIBRARY} PROPERTIES INSTALL_RPATH $<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>)
endforeach()
add_custom_target(backends ALL)
add_dependencies(backends ${BACKENDS})
install(TARGETS ${BACKENDS} LIBRARY DESTINATION tgr_local/lib)
# Windows looks for what the engine needs in the engine's folder
install(TARGETS ggml-base LIBRARY DESTINATION tgr_local/lib RUNTIME DESTINATION tgr_local)
if(TARGET ggml-vulkan) # not among those, which are loaded at once: engine/vulkan.py loads it, where it works
  add_dependencies(backends ggml-vulkan)
  set_target_properties(ggml-vulkan PROPERTIES INSTALL_RPATH $ORIGIN/..)
  install(TARGETS ggml-vulkan LIBRARY DESTINATION tgr_local/lib/vulkan)
endif()

# --- the licences of libgomp, which auditwheel adds, and of Vulkan's headers, whose functions are compiled in: Debian's
# files, or the ones of the manylinux images ---
if(DEFINED SKBUILD_METADATA_DIR AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  file(GLOB GOMP_LICENCES /usr/share/doc/libgomp1/copyright /usr/share/licenses/libgomp/COPYING*
    /usr/share/licenses/libgcc/COPYING*)
  if(NOT GOMP_LICENCES)
    message(WARNING "the wheel lacks the licence of libgomp, which this system does not have where it is looked for")
  endif()
  install(FILES ${GOMP_LICENCES} DESTINATION ${SKBUILD_METADATA_DIR}/licenses/libgomp)
endif()
if(DEFINED SKBUILD_METADATA_DIR AND TARGET ggml-vulkan)
  file(GLOB VULKAN_LICENCES $ENV{VULKAN_SDK}/share/doc/copyright /usr/share/doc/libvulkan-dev/copyright)
  list(SUBLIST VULKAN_LICENCES 0 1 VULKAN_LICENCES) # both exist in Debian 13 after csrc/vulkan_tools.sh
  install(FILES ${VULKAN_LICENCES} DESTINATION ${SKBUILD_METADATA_DIR}/licenses/vulkan-headers)
endif()
if(DEFINED SKBUILD_METADATA_DIR AND MINGW) # and of GCC's and MinGW-w64's libraries, which are linked statically
  foreach(PACKAGE gcc-mingw-w64-base mingw-w64-common)
    install(FILES /usr/share/doc/${PACKAGE}/copyright DESTINATION ${SKBUILD_METADATA_DIR}/licenses/${PACKAGE} OPTIONAL)
  endforeach()
endif()
