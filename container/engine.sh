#!/bin/sh
# A Docker engine for `gandiva mini --backend docker`, where none runs yet.
#
#   container/engine.sh start    use the engine that runs; else, as root, install and start one of our own
#   container/engine.sh host     print the address of the engine in use, or say what is missing
#   container/engine.sh stop     end the engine that `start` started; its images stay
#   container/engine.sh purge    the same, and remove its images too
#
# Our own engine has its own data directory and socket, so it meets no other one on this machine.
set -eu
state=${GANDIVA_ENGINE_STATE:-/var/lib/gandiva-engine}
socket=unix:///run/gandiva-engine/docker.sock
pid_file=$state/dockerd.pid
log=$state/dockerd.log
packages="docker.io docker-compose iptables debootstrap"
here=$(dirname "$0")

say() { echo "== $*" >&2; }
die() {
    echo "gandiva: $1" >&2
    echo "gandiva: next: $2" >&2
    exit 1
}

answers() { [ -x "$(command -v docker)" ] && docker -H "$1" version >/dev/null 2>&1; }

# The engine meant by the environment or the usual socket, else ours; nothing when none answers.
running() {
    for host in "${DOCKER_HOST:-unix:///var/run/docker.sock}" "$socket"; do
        if answers "$host"; then
            echo "$host"
            return 0
        fi
    done
    return 1
}

# The pid file may outlive its daemon: the number counts only while it is a dockerd.
our_pid() {
    [ -s "$pid_file" ] || return 1
    pid=$(cat "$pid_file")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] && echo "$pid"
}

compose_here() { docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null; }

# A container's processes have their own cgroup below each hierarchy; a bare machine may lack the mounts.
need_cgroups() {
    grep -q ' /sys/fs/cgroup' /proc/mounts || mount -t cgroup2 none /sys/fs/cgroup ||
        die "this machine has no /sys/fs/cgroup, which containers need" "mount it, or use --backend local"
}

start() {
    if running >/dev/null && compose_here; then
        say "a Docker engine answers at $(running)"
        return
    fi
    [ "$(id -u)" = 0 ] || die "no Docker engine answers, or docker-compose is missing, and this is not root" \
        "start Docker, or run 'sudo sh container/engine.sh start'"
    # shellcheck disable=SC2086  # one word a package is meant
    sh "$here/install-packages.sh" $packages
    running >/dev/null && return
    need_cgroups
    mkdir -p "$state" /run/gandiva-engine
    for driver in overlay2 fuse-overlayfs vfs; do
        launch "$driver" && return
    done
    tail -n 5 "$log" >&2
    die "dockerd does not start here; the end of $log is above" "use --backend local"
}

# True once dockerd answers with this storage driver; false when it ended instead.
launch() {
    say "starting dockerd with the storage driver $1, below $state"
    rm -f "$pid_file"
    setsid --fork dockerd --data-root "$state/data" --exec-root /run/gandiva-engine/exec \
        --pidfile "$pid_file" --storage-driver "$1" -H "$socket" --log-level warn >"$log" 2>&1 </dev/null
    tries=0
    while ! answers "$socket"; do
        tries=$((tries + 1))
        [ $tries -le 150 ] || break
        [ $tries -le 25 ] || our_pid >/dev/null || return 1
        sleep 0.2
    done
    answers "$socket"
}

stop() {
    pid=$(our_pid) || { say "no engine of ours runs"; return 0; }
    say "ending dockerd, process $pid"
    kill "$pid"
    tries=0
    while [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; do
        tries=$((tries + 1))
        [ $tries -le 150 ] || die "dockerd, process $pid, does not end" "see $log"
        sleep 0.2
    done
}

# The images live below $state, the sockets below /run: neither is taken from under an engine that runs.
purge() {
    stop
    ! answers "$socket" || die "an engine that was not started below $state answers at $socket" \
        "set GANDIVA_ENGINE_STATE as it was when that one was started"
    rm -rf "$state" /run/gandiva-engine
}

case ${1:-} in
    start) start ;;
    host) running || die "no Docker engine answers here" "run 'make engine' (as root it installs and starts one)" ;;
    stop) stop ;;
    purge) purge ;;
    *) die "usage: container/engine.sh start|host|stop|purge" "choose one" ;;
esac
