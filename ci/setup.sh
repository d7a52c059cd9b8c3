# SPDX-License-Identifier: Apache-2.0
# Sourced by ci/demo and ci/test: installs what is missing on Debian and Ubuntu, as root only and never by a silent sudo; elsewhere it
# prints what to install.

# missing COMMAND:PACKAGE ... prints the packages whose command (or file, when it starts with a slash) is not there.
missing() {
  local pair out=()
  for pair in "$@"; do
    case $pair in
      /*) compgen -G "${pair%%:*}" > /dev/null || out+=("${pair##*:}") ;;
      *) command -v "${pair%%:*}" > /dev/null 2>&1 || out+=("${pair##*:}") ;;
    esac
  done
  echo "${out[@]:-}"
}

# need WHAT SIZE COMMAND:PACKAGE ... makes sure that all are there.
need() {
  local what=$1 size=$2 packages
  shift 2
  packages=$(missing "$@")
  [ -n "$packages" ] || return 0
  if ! command -v apt-get > /dev/null 2>&1; then
    echo "To $what, install what your system calls: $packages" >&2
    exit 1
  fi
  if [ "$(id -u)" != 0 ]; then
    echo "To $what, run first ($size):" >&2
    echo "  sudo apt-get install --no-install-recommends $packages" >&2
    exit 1
  fi
  echo "Installing ($size): $packages"
  if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages; } > "${TMPDIR:-/tmp}/tessera-apt.log" 2>&1; then
    tail -n 20 "${TMPDIR:-/tmp}/tessera-apt.log" >&2
    exit 1
  fi
}

need_build() {
  need "build Tessera" "at most 250 MB with a compiler, 10 MB without" gcc:gcc "/usr/include/stdio.h:libc6-dev" meson:meson ninja:ninja-build
}
