#!/bin/sh
# Builds and installs the library, its headers, the master, and files for pkg-config and CMake.
#   install.sh [--prefix DIR]        default /usr/local
set -eu
prefix=/usr/local
while [ $# -gt 0 ]; do
    case $1 in
    --prefix) prefix=${2:?--prefix needs a directory}; shift 2 ;;
    --prefix=*) prefix=${1#--prefix=}; shift ;;
    *) echo "usage: $0 [--prefix DIR]" >&2; exit 2 ;;
    esac
done
cd "$(dirname "$0")"
cargo build --release -p pccl-capi -p pccl-master
target=${CARGO_TARGET_DIR:-target}/release
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
mkdir -p "$prefix/lib/pkgconfig" "$prefix/lib/cmake/pccl" "$prefix/include" "$prefix/bin"
prefix=$(cd "$prefix" && pwd)
cp include/pccl.h include/ccoip.h include/ccoip_inet.h "$prefix/include/"
cp "$target/libpccl.so" "$target/libpccl.a" "$prefix/lib/"
cp "$target/pccl-master" "$prefix/bin/"
cat > "$prefix/lib/pkgconfig/pccl.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: pccl
Description: Fault-tolerant collective communication
Version: $version
Libs: -L\${libdir} -lpccl
Libs.private: -lgcc_s -lpthread -lm -ldl
Cflags: -I\${includedir}
END
cat > "$prefix/lib/cmake/pccl/pcclConfig.cmake" <<'END'
get_filename_component(_pccl_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET pccl::pccl)
  add_library(pccl::pccl SHARED IMPORTED)
  set_target_properties(pccl::pccl PROPERTIES
    IMPORTED_LOCATION "${_pccl_prefix}/lib/libpccl.so"
    IMPORTED_SONAME "libpccl.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_pccl_prefix}/include")
endif()
END
echo "installed in $prefix"
