#!/bin/sh
# Builds and installs the library, its headers, the master, and files for pkg-config and CMake.
#   install.sh [--prefix DIR] [--built DIR]
#   --prefix DIR   where to install; default /usr/local
#   --built DIR    takes the libraries and the master from there instead of building them
#   DESTDIR=DIR    is put before every path that is written to, as packages want it
set -eu
prefix=/usr/local
built=
usage() {
    echo "usage: [DESTDIR=DIR] $0 [--prefix DIR] [--built DIR]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --prefix=*) prefix=${1#*=}; shift ;;
    --built=*) built=${1#*=}; shift ;;
    --prefix | --built)
        [ $# -ge 2 ] || usage
        if [ "$1" = --prefix ]; then prefix=$2; else built=$2; fi
        shift 2 ;;
    *) usage ;;
    esac
done
absolute() {
    case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "$PWD/$1" ;; esac
}
prefix=$(absolute "$prefix")
root=${DESTDIR:+$(absolute "$DESTDIR")}
[ -z "$built" ] || built=$(absolute "$built")

cd "$(dirname "$0")"
if [ -z "$built" ]; then
    cargo build --release --locked -p pccl-capi -p pccl-master
    built=$(absolute "${CARGO_TARGET_DIR:-target}")/release
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}
# As pccl/capi/build.rs says.
soname=libpccl.so.0
to=$root$prefix

mkdir -p "$to/lib/pkgconfig" "$to/lib/cmake/pccl" "$to/include" "$to/bin"
for header in include/*.h include/*.hpp; do
    # A shell leaves a pattern that nothing matches as it is.
    [ ! -e "$header" ] || install -m 644 "$header" "$to/include/"
done
install -m 755 "$built/libpccl.so" "$to/lib/libpccl.so.$version"
install -m 644 "$built/libpccl.a" "$to/lib/"
install -m 755 "$built/pccl-master" "$to/bin/"
ln -sf "libpccl.so.$version" "$to/lib/$soname"
# For linkers, and for programs that were linked before the library had a version in its name.
ln -sf "$soname" "$to/lib/libpccl.so"
if command -v strip >/dev/null; then
    strip --strip-unneeded "$to/lib/libpccl.so.$version" "$to/bin/pccl-master"
    strip --strip-debug "$to/lib/libpccl.a"
fi

cat > "$to/lib/pkgconfig/pccl.pc" <<END
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

cat > "$to/lib/cmake/pccl/pcclConfig.cmake" <<END
# pccl::pccl is the shared library, pccl::static the static one.
get_filename_component(_pccl_prefix "\${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET pccl::pccl)
  add_library(pccl::pccl SHARED IMPORTED)
  set_target_properties(pccl::pccl PROPERTIES
    IMPORTED_LOCATION "\${_pccl_prefix}/lib/$soname"
    IMPORTED_SONAME "$soname"
    INTERFACE_INCLUDE_DIRECTORIES "\${_pccl_prefix}/include")
endif()
if(NOT TARGET pccl::static)
  add_library(pccl::static STATIC IMPORTED)
  set_target_properties(pccl::static PROPERTIES
    IMPORTED_LOCATION "\${_pccl_prefix}/lib/libpccl.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES C
    INTERFACE_LINK_LIBRARIES "gcc_s;pthread;m;dl"
    INTERFACE_INCLUDE_DIRECTORIES "\${_pccl_prefix}/include")
endif()
unset(_pccl_prefix)
END

cat > "$to/lib/cmake/pccl/pcclConfigVersion.cmake" <<END
# Before 1.0.0 a new minor version may change what the extensions of the interface do.
set(PACKAGE_VERSION "$version")
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(NOT CMAKE_SIZEOF_VOID_P STREQUAL "" AND NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(PACKAGE_VERSION_UNSUITABLE TRUE)
elseif(PACKAGE_FIND_VERSION_RANGE)
  if(PACKAGE_VERSION VERSION_GREATER_EQUAL PACKAGE_FIND_VERSION_MIN AND
      (PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION_MAX OR
       (PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "INCLUDE" AND PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION_MAX)))
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
elseif(PACKAGE_FIND_VERSION_MAJOR EQUAL $major AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  if($major GREATER 0 OR PACKAGE_FIND_VERSION_MINOR EQUAL $minor OR PACKAGE_FIND_VERSION_COUNT LESS 2)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
END

echo "installed in $to"
# Into a directory of its own a package manager's script does this.
if [ -z "$root" ]; then
    if [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null && ldconfig 2>/dev/null &&
        ldconfig -p | grep -q "=> $prefix/lib/$soname\$"; then
        echo "the dynamic linker knows $soname"
    else
        echo "if programs do not find $soname: run ldconfig as root (where /etc/ld.so.conf names $prefix/lib)," \
            "set LD_LIBRARY_PATH=$prefix/lib, or link with -Wl,-rpath,$prefix/lib"
    fi
fi
