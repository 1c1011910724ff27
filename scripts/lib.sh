# Shared by the scripts beside it; sourced, never run.
# shellcheck shell=bash disable=SC2034
#
# Whatever a script starts, mounts or writes it registers with `at_exit` the
# moment it exists; the handlers run in reverse order however the script ends.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
tools=$root/target/tools/bin
PATH=$PATH:/usr/sbin:/sbin
[[ $target == /* ]] || target=$root/$target

note() { printf '%s\n' "$*"; }
warn() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
    warn "$*"
    exit 1
}

# ---- cleaning up -----------------------------------------------------------

exit_handlers=()

# at_exit COMMAND [ARG..]: run it when the script ends.
at_exit() {
    exit_handlers+=("$(printf '%q ' "$@")")
}

run_exit_handlers() {
    local status=$? i
    trap - EXIT
    trap '' INT TERM HUP
    set +e
    for ((i = ${#exit_handlers[@]} - 1; i >= 0; i--)); do
        eval "${exit_handlers[i]}"
    done
    exit "$status"
}

trap run_exit_handlers EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# new_work_dir NAME: sets $work to a fresh directory every user may search.
new_work_dir() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/leasefs-$1.XXXXXX")
    chmod 755 "$work"
    at_exit remove_work_dir "$work"
}

# A directory in which something is still mounted is left alone: removing it
# would remove what is mounted.
remove_work_dir() {
    if mounts_below "$1" | grep -q .; then
        warn "left $1: something is still mounted in it"
        return
    fi
    rm -rf --one-file-system "$1"
}

# stop_pid PID [SECONDS]: TERM, and KILL for what is still there after SECONDS.
stop_pid() {
    local pid=$1 tries=$((${2:-10} * 20))
    kill -TERM "$pid" 2>/dev/null || return 0
    while kill -0 "$pid" 2>/dev/null && ((tries-- > 0)); do sleep 0.05; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
}

# ---- mounts ----------------------------------------------------------------

# mounts_below DIR: the mount points at or below DIR, deepest last.
mounts_below() {
    awk -v dir="$1" '{ path = $5; gsub(/\\040/, " ", path)
        if (path == dir || index(path, dir "/") == 1) print path }' /proc/self/mountinfo
}

is_mounted() {
    mounts_below "$1" | grep -qxF -- "$1"
}

unmount() {
    is_mounted "$1" || return 0
    fusermount3 -u "$1" 2>/dev/null || umount "$1" 2>/dev/null ||
        fusermount3 -uz "$1" 2>/dev/null || umount -l "$1"
}

# loop_ext4 MIB DIR: mounts a new ext4 of that size on DIR; needs root.
loop_ext4() {
    local image=$2.img
    mkdir -p "$2"
    truncate -s "$1M" "$image"
    mkfs.ext4 -q -F "$image"
    mount -o loop "$image" "$2"
    at_exit unmount "$2"
}

# suits_pjdfstest DIR: pjdfstest builds paths of PATH_MAX bytes below
# DIR/.tmpXXXXXX/.tmpXXXXXX from components of 127 bytes and fails by itself when
# they come out even; and it binds sockets with names of 32 bytes there.
suits_pjdfstest() {
    local base=$((${#1} + 22))
    (((4095 - base) % 127 > 1 && base + 33 < 108))
}

# ---- nothing left behind ---------------------------------------------------
#
# For scripts that give what they start LEASEFS_RUN and TMPDIR, both $work.

# ours: processes of this run, by the mark in their environment.
ours() {
    marked "LEASEFS_RUN=$LEASEFS_RUN"
}

# marked NAME=VALUE: processes with that in their environment.
marked() {
    local file pid
    { grep -lzxF "$1" /proc/[0-9]*/environ 2>/dev/null || true; } |
        while read -r file; do
            pid=${file//[^0-9]/}
            [[ ! -r /proc/$pid/cmdline ]] || [[ -z $(tr -d '\0' <"/proc/$pid/cmdline") ]] ||
                printf '%s\n' "$pid"
        done
}

# our_loops: loop devices whose image lies in our directory.
our_loops() {
    losetup --list --noheadings --output NAME,BACK-FILE 2>/dev/null |
        awk -v dir="$TMPDIR/" 'index($2, dir) == 1 { print $1 }'
}

kill_ours() {
    local pid
    for pid in $(ours); do as_root kill -KILL "$pid" 2>/dev/null || true; done
}

describe_left() {
    local pid
    for pid in $(ours); do
        note "left running: $pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"
    done 2>/dev/null
    mounts_below "$TMPDIR" | sed 's/^/left mounted: /'
    our_loops | sed 's/^/left attached: /'
    find "$TMPDIR" -mindepth 1 -maxdepth 1 | sed 's/^/left in the temporary directory: /'
}

clean_up() {
    local dir loop
    kill_ours
    mounts_below "$work" | tac | while read -r dir; do as_root umount -l "$dir" || true; done
    our_loops | while read -r loop; do as_root losetup --detach "$loop" || true; done
    as_root find "$work" -mindepth 1 -xdev -delete || true
}

# ---- requirements ----------------------------------------------------------

# as_root CMD..: runs it as root, through sudo when need be.
as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

can_be_root() {
    ((EUID == 0)) || sudo -n true 2>/dev/null
}

# need_fuse: says what is missing when this user can't mount.
need_fuse() {
    [[ -e /dev/fuse ]] || die "/dev/fuse is missing: load the module with 'modprobe fuse' (in a container, pass --device /dev/fuse)"
    [[ -r /dev/fuse && -w /dev/fuse ]] || die "/dev/fuse is not accessible to $(id -un): run as root, or 'chmod 666 /dev/fuse'"
    command -v fusermount3 >/dev/null || die "fusermount3 is missing: run scripts/setup"
}

# ---- daemons ---------------------------------------------------------------

# build PROFILE: builds both daemons and what measures them, and sets $bin to where they are.
build() {
    local flags=()
    bin=$target/debug
    if [[ $1 == release ]]; then
        flags=(--release)
        bin=$target/release
    fi
    (cd "$root" && cargo build --locked "${flags[@]}" --workspace --bins)
}

# What is installed, and no more, as README has it built.
build_to_use() {
    bin=$target/release
    (cd "$root" && cargo build --locked --release)
    # The names of what turns faults on, for tests.
    ! grep -qE 'LEASEFS_(PLANTED|TEST_FAULT)' "$bin/fsserver" "$bin/fsclient" || die "faults for tests are in a release build"
}

# lay_out DIR [--built DIR]: the programs, stripped, their man pages and completions, as DIR/bin and DIR/share.
lay_out() {
    local built=$target/release program
    case ${2:-} in
        '') build_to_use ;;
        --built) built=${3:?which directory?} ;;
        *) die "unknown option $2" ;;
    esac
    rm -rf "${1:?}/bin" "$1/share"
    mkdir -p "$1/bin"
    for program in fsserver fsclient; do
        install -s -m 755 "$built/$program" "$1/bin/"
        "$1/bin/$program" manual "$1/share"
    done
}

# start_server DIR NAME [ARG..]: serves DIR on a free port of the loopback, or on $listen_port if that is set.
# Its state, ticket and logs are $work/NAME.*. Sets $server_pid, $server_addr
# and $ticket (the ticket's file).
start_server() {
    local dir=$1 name=$2
    shift 2
    ticket=$work/$name.ticket
    # What an earlier one under this name has said isn't its word.
    rm -f "$work/$name.out"
    "$bin/fsserver" serve "$dir" --listen "127.0.0.1:${listen_port:-0}" --state "$work/$name.state" \
        --ticket-file "$ticket" "$@" >"$work/$name.out" 2>>"$work/$name.log" &
    server_pid=$!
    at_exit stop_pid "$server_pid"
    await_file_line "$work/$name.out" '^ready ' "$server_pid" ||
        die "the server did not start: $(tail -n 5 "$work/$name.log")"
    server_addr=$(sed -n 's/^ready //p' "$work/$name.out")
}

# mount_client SOURCE DIR STATE [ARG..]: mounts SOURCE (a ticket's file as @FILE,
# or HOST:PORT:/) on DIR, the daemon in the foreground of a background job, so
# that its pid ($client_pid) is known.
mount_client() {
    local source=$1 dir=$2 state=$3
    shift 3
    mkdir -p "$dir"
    "$bin/fsclient" mount "$source" "$dir" --state "$state" --foreground "$@" \
        >"$dir.out" 2>"$dir.log" &
    client_pid=$!
    at_exit stop_client "$client_pid" "$dir"
    await_file_line "$dir.out" '^ready ' "$client_pid" ||
        die "the mount on $dir failed: $(tail -n 5 "$dir.log")"
}

stop_client() {
    stop_pid "$1"
    unmount "$2"
}

# serve_here DIR NAME [ARG..]: start_server for mounts on this machine by this user, who
# keeps the rights over DIR he has without a mount. Sets $ticket accordingly.
serve_here() {
    if ((EUID != 0)); then
        start_server "$@" --identity squash
        return
    fi
    start_server "$@" --identity trust
    ticket=$work/$2.trusted
    issue_ticket "$work/$2.state" "$ticket" --trust
}

# issue_ticket STATE FILE [ARG..]: a fresh ticket of the running server, in FILE.
issue_ticket() {
    local state=$1 file=$2
    shift 2
    (umask 077 && "$bin/fsserver" ticket --state "$state" "$@" >"$file")
}

# end_after SECONDS PID..: kills these when the time is up; end it with
# `kill "$watchdog"`. Killing a client's daemon frees whoever waits in its mount.
end_after() {
    local seconds=$1 never
    shift
    (
        trap - EXIT INT TERM HUP
        exec {never}<> <(:)
        read -rt "$seconds" -u "$never" || kill -KILL "$@" 2>/dev/null
    ) &
    watchdog=$!
}

# await_file_line FILE PATTERN PID: waits until FILE has such a line; fails when
# PID ends first or after 30 s.
await_file_line() {
    local tries=600
    until grep -q -- "$2" "$1" 2>/dev/null; do
        kill -0 "$3" 2>/dev/null || return 1
        ((tries-- > 0)) || return 1
        sleep 0.05
    done
}
