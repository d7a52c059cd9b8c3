#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernels never call the oracle: no object of theirs mentions one of its symbols; and the oracle's objects mention nothing of common/
# but dtype decoding, memory and errors. Usage: oracle_apart.sh LIBTESSERA.A KERNEL_LIBRARY...
set -eu
all=$1
shift
[ $# -gt 0 ]
for lib in "$@"; do
  [ -n "$(nm "$lib" 2> /dev/null)" ] || { echo "$lib has no symbols"; exit 1; }
  if nm "$lib" 2> /dev/null | grep -E 'tsr__ref|tsr_reference'; then
    echo "$lib knows the oracle"
    exit 1
  fi
done
oracle=$(ar t "$all" | grep -E 'reference(_[a-z]+)?\.c\.o$' | grep -v reference_api)
[ "$(echo "$oracle" | wc -l)" -ge 5 ]
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
all=$(readlink -f "$all")
(cd "$tmp" && ar x "$all" $oracle)
foreign=$(nm -u "$tmp"/*.o | awk '$1 == "U" {print $2}' | grep '^tsr' | sort -u |
  grep -Ev '^(tsr__ref.*|tsr__dtype_.*|tsr_dtype_.*|tsr_decode|tsr_encode|tsr__alloc_.*|tsr__fail|tsr__ok)$' || true)
[ -z "$foreign" ] || { echo "the oracle calls: $foreign"; exit 1; }
echo "$# kernel libraries and the oracle are apart"
