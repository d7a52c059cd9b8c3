#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the library into a temporary prefix and uses it as an embedder would: the C program of README.md through pkg-config,
# CMake and as a Meson subproject, a C++17 one, and what the shared and static libraries export and link.
# Usage: packaging.sh SOURCE_ROOT
set -eu
root=$(cd "$1" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
meson=${MESON:-meson}
fail() { echo "packaging: $*" >&2; exit 1; }
step() { echo "packaging: $*"; }

step "install into a prefix"
"$meson" setup "$tmp/build" "$root" --prefix "$tmp/prefix" --libdir lib -Dtests=disabled -Dwerror=true > "$tmp/log" 2>&1 || { cat "$tmp/log"; fail setup; }
"$meson" install -C "$tmp/build" > "$tmp/log" 2>&1 || { cat "$tmp/log"; fail install; }
lib=$tmp/prefix/lib/libtessera.so
export PKG_CONFIG_PATH=$tmp/prefix/lib/pkgconfig LD_LIBRARY_PATH=$tmp/prefix/lib

step "the program of README.md through pkg-config"
mkdir "$tmp/app"
awk '/^```c$/ && !done {on=1; next} /^```$/ {if (on) done=1; on=0} on' "$root/README.md" > "$tmp/app/main.c"
lines=$(wc -l < "$tmp/app/main.c")
[ "$lines" -ge 10 ] && [ "$lines" -le 30 ] || fail "README's C program has $lines lines"
gcc -std=c11 -Wall -Wextra -Wpedantic -Werror "$tmp/app/main.c" -o "$tmp/app/pc" $(pkg-config --cflags --libs tessera) -lm
"$tmp/app/pc" || fail "README's program exits with $?"

step "the same through CMake"
cat > "$tmp/app/CMakeLists.txt" <<'CM'
cmake_minimum_required(VERSION 3.13)
project(app C)
find_package(tessera 0.1 CONFIG REQUIRED)
add_executable(app main.c)
target_link_libraries(app tessera::tessera m)
CM
cmake -S "$tmp/app" -B "$tmp/app/cm" -DCMAKE_PREFIX_PATH="$tmp/prefix" > "$tmp/log" 2>&1 && cmake --build "$tmp/app/cm" >> "$tmp/log" 2>&1 || { cat "$tmp/log"; fail cmake; }
"$tmp/app/cm/app" || fail "the CMake build exits with $?"

step "the same as a Meson subproject"
mkdir -p "$tmp/app/subprojects"
ln -s "$root" "$tmp/app/subprojects/tessera"
cat > "$tmp/app/meson.build" <<'MB'
project('app', 'c', default_options: ['c_std=c11'])
tessera = dependency('tessera', fallback: 'tessera')
executable('app', 'main.c', dependencies: [tessera, meson.get_compiler('c').find_library('m')])
MB
(unset PKG_CONFIG_PATH; "$meson" setup "$tmp/app/mb" "$tmp/app" -Dtessera:tools=disabled > "$tmp/log" 2>&1 && ninja -C "$tmp/app/mb" app >> "$tmp/log" 2>&1) || { cat "$tmp/log"; fail "meson subproject"; }
"$tmp/app/mb/app" || fail "the subproject build exits with $?"

step "a C++17 program"
cat > "$tmp/app/main.cpp" <<'CPP'
#include <tessera/cpu.h>
#include <tessera/dlpack.h>
#include <tessera/tessera.h>
#include <cmath>
#include <vector>
int main() {
  tsr_context *context = nullptr;
  tsr_error err;
  if (tsr_context_create(nullptr, &context, &err) != TSR_OK) return 1;
  std::vector<float> q(2 * 3 * 8, 0.5f), o(q.size(), -1.0f);
  tsr_attention_desc desc = tsr_attention_desc_init();
  desc.q = desc.k = desc.v = desc.o = tsr_layout_dense(TSR_F32, 1, 2, 3, 8);
  tsr_run_args args = tsr_run_args_init();
  args.q = args.k = args.v = tsr_buffer_in(q.data());
  args.o = tsr_buffer_out(o.data());
  if (tsr_attention_once(context, &desc, &args, &err) != TSR_OK) return 2;
  tsr_context_destroy(context);
  for (float x : o) if (std::fabs(x - 0.5f) > 1e-6f) return 3;
  return 0;
}
CPP
g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$tmp/app/main.cpp" -o "$tmp/app/cpp" $(pkg-config --cflags --libs tessera)
"$tmp/app/cpp" || fail "the C++ program exits with $?"

step "each public header alone, as C11 and C++17"
for header in "$tmp"/prefix/include/tessera/*.h; do
  name=tessera/$(basename "$header")
  echo "#include <$name>
int main(void) { return 0; }" > "$tmp/app/h.c"
  gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(pkg-config --cflags tessera) "$tmp/app/h.c" || fail "$name as C11"
  g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ $(pkg-config --cflags tessera) "$tmp/app/h.c" || fail "$name as C++17"
done

step "symbols, dependencies, size"
stray=$(nm -D --defined-only "$lib" | awk '$2 ~ /[TDBRVW]/ {print $3}' | grep -v '^tsr_[a-z0-9]' || true)
[ -z "$stray" ] || fail "stray dynamic symbols: $stray"
nm -D --defined-only "$lib" | grep -q '@@TESSERA_0' || fail "symbols carry no version"
inner=$(nm -D --defined-only "$lib" | grep 'tsr__' || true)
[ -z "$inner" ] || fail "internal symbols are exported: $inner"
stray=$(nm -g --defined-only "$tmp/prefix/lib/libtessera.a" | awk 'NF == 3 {print $3}' | grep -v '^tsr_' || true)
[ -z "$stray" ] || fail "stray symbols in the static library: $stray"
readelf -d "$lib" | grep -q 'SONAME.*libtessera.so.0' || fail "no SONAME libtessera.so.0"
needed=$(readelf -d "$lib" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -Ev '^(libc|libm|libgomp|libomp|libdl|libpthread|ld-linux.*)\.so' || true)
[ -z "$needed" ] || fail "links more than libc, libm and OpenMP: $needed"
strip -o "$tmp/stripped" "$lib"
size=$(stat -c %s "$tmp/stripped")
limit=3000000
grep -q '\.target sm_' "$tmp/stripped" && limit=8000000 # images of GPU kernels are embedded
[ "$size" -lt "$limit" ] || fail "the library is $size bytes, must be below $limit"

step "dlopen changes no floating-point control bit, and dlclose after the last context is safe"
cat > "$tmp/app/fp.c" <<'FP'
#include <dlfcn.h>
#include <stdio.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#define STATE() (_mm_getcsr() & ~0x3fu)
#else
#include <fenv.h>
#define STATE() ((unsigned)fegetround())
#endif
int main(int argc, char **argv) {
  volatile float tiny = 1e-39f;
  const unsigned before = STATE();
  void *lib = dlopen(argv[argc - 1], RTLD_NOW);
  int (*create)(const void *, void **, void *);
  void (*destroy)(void *);
  void *context = 0;
  if (!lib) return fprintf(stderr, "%s\n", dlerror()), 1;
  *(void **)&create = dlsym(lib, "tsr_context_create");
  *(void **)&destroy = dlsym(lib, "tsr_context_destroy");
  if (create(0, &context, 0) != 0) return 2;
  destroy(context);
  if (STATE() != before || tiny * 0.5f == 0.0f) return 3;
  if (dlclose(lib) != 0) return 4;
  return STATE() != before;
}
FP
gcc -O1 -Wall -Wextra -Werror "$tmp/app/fp.c" -o "$tmp/app/fp" -ldl
"$tmp/app/fp" "$lib" || fail "the floating-point state test exits with $?"
echo "packaging: ok ($size bytes, $(nm -D --defined-only "$lib" | grep -c ' T ') functions)"
