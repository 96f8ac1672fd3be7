#!/bin/sh
# Debian's Slurm of this machine as one archive, for a bare Ubuntu 24.04 without network:
#   tests/gpu/slurm.sh pack             writes .wheels/slurm.tar.gz (git ignores it)
#   tests/gpu/slurm.sh unpack [ROOT]    as root, into ROOT (/ without it); a file that is there already stays
# In it are the packages that a mini cluster needs, the libraries they are linked with but for libc's, and spank/gandiva.so.
set -euf # -f: dpkg's patterns are no files of this directory
cd "$(dirname "$0")/../.."
archive=.wheels/slurm.tar.gz
packages='slurm* libslurm* munge libmunge* mariadb-server* mariadb-client-core* mariadb-common mysql-common liblua5* iproute2 make'
#: Tools for tables' files and headers for builds: half of the archive, and no cluster runs them.
unused='/usr/(bin/(aria_|myisam|innochecksum|mariadb-upgrade|mariadb-check|mysqlslap)|lib/.*\.a$|include/)'
#: The target's own are as new as these or newer, and belong together.
libc='ld-linux|libc\.so|libm\.so|libdl\.so|libpthread\.so|librt\.so|libresolv\.so|libnss_|libutil\.so|libanl\.so'

pack() {
    command -v slurmctld >/dev/null || { echo "slurm.sh: no Slurm is installed here; next: make setup" >&2; exit 1; }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make --no-print-directory -s -C spank
    # shellcheck disable=SC2086
    dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' $packages 2>/dev/null | sed -n 's/^ii *//p' | sort -u \
        | xargs dpkg -L | grep -E '^/(usr|etc|lib|sbin|bin)/' \
        | grep -vE "^/usr/share/(doc|man|locale|lintian|bug)/|^$unused" \
        | while read -r file; do [ -d "$file" ] && [ ! -L "$file" ] || echo "$file"; done | sort -u >"$work/files"
    # Names that Debian's alternatives lead to these by.
    for link in $(find /usr/bin /usr/sbin -lname '/etc/alternatives/*'); do
        ! grep -qxF "$(readlink -f "$link")" "$work/files" || printf '%s\n' "$link" "$(readlink "$link")"
    done >"$work/names"
    cat "$work/names" >>"$work/files"
    # What programs and plugins are linked with, by the names the loader looks for, and the files behind these.
    while read -r file; do
        case $(head -c 4 "$file" 2>/dev/null | tr -d '\0') in *ELF*) ldd "$file" 2>/dev/null || true ;; esac
    done <"$work/files" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | grep -vE "/($libc)" | sort -u >"$work/libraries"
    while read -r library; do
        directory=$(readlink -f "$(dirname "$library")")
        echo "$directory/$(basename "$library")"
        readlink -f "$library"
    done <"$work/libraries" >>"$work/files"
    sort -u "$work/files" | while read -r file; do [ ! -e "$file" ] || echo "${file#/}"; done >"$work/list"
    mkdir -p .wheels
    tar -C / -cf "$work/slurm.tar" --no-recursion -T "$work/list"
    tar -rf "$work/slurm.tar" --transform='s,^,opt/gandiva/,' spank/gandiva.so
    gzip -9 <"$work/slurm.tar" >"$work/slurm.tar.gz"
    mv "$work/slurm.tar.gz" "$archive"
    echo "$archive: $(slurmctld -V), $(wc -l <"$work/list") files, $(($(wc -c <"$archive") >> 20)) MiB"
}

unpack() {
    root=${1:-/}
    [ -f "$archive" ] || { echo "slurm.sh: there is no $archive; next: tests/gpu/slurm.sh pack, on a Debian with Slurm" >&2; exit 1; }
    mkdir -p "$root"
    # Debian and Ubuntu have /bin, /lib and /sbin as links into /usr, which must stay links.
    for name in bin lib sbin; do
        mkdir -p "$root/usr/$name"
        [ -e "$root/$name" ] || ln -s "usr/$name" "$root/$name"
    done
    tar -C "$root" -xzf "$archive" --skip-old-files --keep-directory-symlink --no-same-owner
    [ -f spank/gandiva.so ] || cp "$root/opt/gandiva/spank/gandiva.so" spank/gandiva.so
    touch spank/gandiva.so # so that make finds it newer than its sources: there may be no compiler
    [ "$root" = / ] || return 0
    for name in slurm munge mysql; do
        getent passwd "$name" >/dev/null || useradd --system --no-create-home --user-group --shell /usr/sbin/nologin "$name"
    done
    ldconfig
    slurmctld -V
}

case ${1:-} in
pack) pack ;;
unpack) unpack "${2:-/}" ;;
*)
    echo "usage: tests/gpu/slurm.sh pack | unpack [ROOT]" >&2
    exit 2 ;;
esac
