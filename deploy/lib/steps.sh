# Shell functions that the scripts share: where the tree is, steps that are shown and
# timed, packages that are installed when missing. Source it; it runs nothing.
# shellcheck shell=bash

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$tree/target}
# Parts of the tests read this too.
export CARGO_TARGET_DIR=$target

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

note() {
    printf '%s\n' "$*" >&2
}

# Runs a command as root: as it is for root, through sudo for others.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo -- "$@"
    else
        note "not root, and sudo is not there: cannot run $*"
        return 1
    fi
}

# Installs those of the named Debian packages that are missing. Says what it does.
need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null 2>&1 ||
        die "needs the equivalent of these Debian packages: ${missing[*]}"
    note "installing ${missing[*]}"
    local log
    log=$(mktemp)
    if ! as_root apt-get -o Acquire::Retries=3 update >"$log" 2>&1; then
        note "apt-get update had errors; going on with the lists that are there"
    fi
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 \
        install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# What building takes beside Rust: clang for the BPF programs, libelf and zlib for libbpf,
# cmake, a C++ compiler and libclang for HiGHS, the simulator's LP solver.
need_build_packages() {
    need_packages clang-19 cmake g++ gcc libc6-dev libclang1-19 libelf-dev make pkg-config \
        zlib1g-dev
}

# QEMU for x86-64. Where the release's own conflicts with what is installed from its
# backports, QEMU comes from there too, by sources of its own: the host's stay as they are.
need_qemu() {
    command -v qemu-system-x86_64 >/dev/null 2>&1 && return 0
    (need_packages qemu-system-x86) && return 0
    local apt release mirror
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
    [ -n "$mirror" ] || { note "apt names no Debian mirror on this host"; return 1; }
    note "installing qemu-system-x86 from $release-backports"
    apt=$(mktemp -d)
    mkdir -p "$apt/lists/partial" "$apt/parts"
    for suite in "$release" "$release-backports"; do
        printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
            "$mirror" "$suite"
    done >"$apt/sources.list"
    local options=(-o "Dir::Etc::SourceList=$apt/sources.list" -o "Dir::Etc::SourceParts=$apt/parts"
        -o "Dir::State::Lists=$apt/lists" -o Acquire::Retries=3)
    as_root apt-get "${options[@]}" update >"$apt/log" 2>&1 &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y \
            --no-install-recommends -t "$release-backports" qemu-system-x86 >>"$apt/log" 2>&1
    local status=$?
    [ $status = 0 ] || tail -n 20 "$apt/log" >&2
    as_root rm -rf "$apt"
    return $status
}

need_rust() {
    command -v cargo >/dev/null 2>&1 || die "Rust is missing: see https://rustup.rs, then run this again"
    local have want
    have=$(rustc --version | cut -d' ' -f2)
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$tree/Cargo.toml")
    [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ] ||
        die "Rust $have is too old, $want or later is needed: rustup update stable"
}

# seconds SINCE: whole seconds since the moment that `date +%s` gave.
seconds() {
    printf '%d' $(($(date +%s) - $1))
}
